eval "$__rf_run" # What kernel.sh sources for each request, on the first line, for the code counts its own from here.
