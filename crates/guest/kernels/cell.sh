\builtin eval "$__rf_run" # What kernel.sh sources for each request, on the first line: the code counts from here.
