echo "measured 42"
