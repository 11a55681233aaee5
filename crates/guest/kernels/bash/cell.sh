\builtin eval "$__rf_script" # sourced by kernel.sh for each request; line numbers of the code start here
