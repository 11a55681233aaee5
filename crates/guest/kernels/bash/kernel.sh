# The bash kernel of a session: an interactive shell without a terminal, whose input is the control channel.
#
#   bash -c 'exec bash --noprofile --rcfile kernel.sh --noediting -i <&3 3<&- 252>&2 2<>/dev/null'
#
# The kernel sends `ready VERSION` once. The host sends a line `ID LENGTH` and LENGTH bytes of code; the kernel replies
# with `ID STATUS`. It ends at end of file.
#
# The shell is interactive, because only such a shell survives an interrupt, `set -u` and ${x:?} and drops just the rest
# of the code. It never reads at its prompt: the code runs in PROMPT_COMMAND, where bash prints nothing about terminals
# and jobs. The shell's own input and output are not those of the code, so that redirections of the code end with it, and
# its trace does not show the kernel.
#
# Limits: a successful `exec` and `builtin exit` end the kernel. A trap of INT or DEBUG lasts for one request. An
# expansion error in the text of an `eval`, of a sourced file, or of code with more than 16384 commands drops only the
# command that has it. `set -e` applies in a function that is called with `!`. A trap of EXIT runs at the end of the
# shell, not of the code; in posix mode `exit` ends the shell. A trap of ERR runs in functions too: the kernel needs
# `set -E`, and cannot distinguish it from that of the code.
#
# Code may define functions of any name, so the kernel calls builtins with `builtin`, and removes a function of that name.
# It removes a function `command` until the code starts: PROMPT_COMMAND needs the builtin, because bash would apply
# `set -e` to the left of `||` in a `builtin eval`.

# Replies to the last request and reads the next.
__rf_next_request() {
  __rf_has_builtin || unset -f builtin
  builtin local __rf_length __rf_read_timeout= - # `-`: options of the code do not apply in here
  builtin set +euvx -f
  builtin trap '' INT
  [[ -z $__rf_saved_pwd ]] || __rf_restore_directory
  [[ -z $__rf_saved_argv0 ]] || BASH_ARGV0=$__rf_saved_argv0 __rf_saved_argv0=
  # Ends if the code has closed a descriptor. 252 is tested first: one that bash saves for a redirection could get its
  # number.
  ((1)) 2>&252 >&251 <&250 || builtin exit
  [[ -z $__rf_id ]] || builtin printf '%s %s\n' "$__rf_id" "$__rf_status" >&0
  __rf_prompts=0 __rf_last_status=$__rf_status __rf_status=130 # stays if the code is interrupted
  if [[ ${TMOUT:-0} != 0 ]]; then # interrupted code has left it set, and its timer runs
    builtin trap : ALRM
    __rf_suspend_timeout
    [[ $TMOUT == 0 ]] || __rf_read_timeout=-t1000000000 # it is read-only
  fi
  IFS=' ' builtin read -r ${__rf_read_timeout:+"$__rf_read_timeout"} __rf_id __rf_length || builtin exit
  IFS= LC_ALL=C builtin read -r ${__rf_read_timeout:+"$__rf_read_timeout"} -N "$__rf_length" __rf_code || builtin exit
  __rf_script="{ $__rf_code"$'\n}'
  if [[ $__rf_code == *alias\ *=* || $__rf_code == *extglob* ]]; then
    builtin mapfile -t __rf_lines <<<"$__rf_code" || __rf_lines=("$__rf_code") # bash may need a file for it
    __rf_next_part
  elif ! __rf_is_command; then
    __rf_lines=("$__rf_code")
    __rf_next_part
  fi
  __rf_script="__rf_before_code; $__rf_script <&250 >&251 2>&252"
  ! builtin declare -F command || { __rf_saved_command=$(builtin declare -f command); builtin unset -f command; }
  __rf_file=$__rf_directory/cell.sh
  [[ $__rf_code != *BASH_SOURCE* ]] || __rf_use_relative_file
  builtin trap - INT
}

# Makes a script of the next part of the code, as one command, because an expansion error drops one command. A part ends
# with a command that may change how bash parses the following code (aliases, extglob). Code that is not a command is
# parsed like a script.
__rf_next_part() {
  __rf_has_builtin || unset -f builtin
  builtin local __rf_line __rf_count=0 __rf_tries=0 IFS=$'\n' -
  [[ $- != *x* ]] || __rf_lines[0]="\\builtin set -x; ${__rf_lines[0]}" # the caller of this turns it off
  builtin set +eux -f
  while ((__rf_count < ${#__rf_lines[@]})); do
    __rf_line=${__rf_lines[__rf_count++]}
    ((__rf_tries > 0 || __rf_count == ${#__rf_lines[@]})) ||
      [[ $__rf_line == *alias\ *=* || $__rf_line == *extglob* ]] || builtin continue
    ((++__rf_tries < 100)) || __rf_count=${#__rf_lines[@]} # probably a long text, and not a long command
    __rf_script="{ ${__rf_lines[*]:0:__rf_count}"$'\n}'
    __rf_is_command || builtin continue
    __rf_lines=("${__rf_lines[@]:__rf_count}")
    ((${#__rf_lines[@]} == 0)) ||
      __rf_script="{ $__rf_script; { __rf_next_part; \\builtin set +x; } 2>/dev/null; "'\builtin eval "$__rf_script"; }'
    builtin return
  done
  __rf_rest="${__rf_lines[*]}" __rf_script='\builtin eval "$__rf_rest"'
  builtin eval : # or bash mistakes the end of the trial for that of the rest
}

# Whether the script is one complete command. One with too many commands is not: bash recurses for each command of a
# list. Only `esac` and `}` could end the trial too early.
__rf_is_command() {
  if ((${#__rf_script} > 32768)); then
    builtin local IFS=$';&|\n'
    builtin set -- $__rf_script
    (($# <= 16384)) || builtin return
  fi
  builtin eval "__rf_trial() { case . in (.) $__rf_script;; esac; }" 2>/dev/null && builtin unset -f __rf_trial
}

# Runs right before the code, which sees the status of the previous code.
__rf_before_code() {
  [[ -z $__rf_saved_pwd ]] || __rf_restore_directory
  builtin set -E
  __rf_set_err_trap "$__rf_err_action"
  [[ -z $__rf_saved_timeout ]] || TMOUT=$__rf_saved_timeout __rf_saved_timeout=
  [[ -z $__rf_saved_command ]] || { builtin eval "$__rf_saved_command"; __rf_saved_command=; }
  builtin return "$__rf_last_status"
}

# For code that uses BASH_SOURCE, its file is in its working directory. If it uses $0 too, that is the same file.
__rf_use_relative_file() {
  builtin local "__rf_pwd=$PWD" "__rf_oldpwd=${OLDPWD-}"
  [[ $PWD == /* && . -ef $PWD ]] && builtin cd "$__rf_directory" || builtin return
  __rf_saved_pwd=$__rf_pwd __rf_saved_oldpwd=$__rf_oldpwd __rf_file=./cell.sh
  [[ $__rf_code != *'$0'* && $__rf_code != *'${0'* ]] || __rf_saved_argv0=$0 BASH_ARGV0=$__rf_file
}

__rf_restore_directory() {
  builtin cd "$__rf_saved_pwd"
  OLDPWD=$__rf_saved_oldpwd __rf_saved_pwd=
  [[ -n $OLDPWD ]] || builtin unset OLDPWD
}

# With TMOUT, bash would end a shell that waits long for the next request.
__rf_suspend_timeout() {
  [[ ${TMOUT@a} == *r* ]] || __rf_saved_timeout=$TMOUT TMOUT=0
}

# With a function of that name the kernel could neither read nor reply.
__rf_has_builtin() {
  __rf_is_true=
  builtin printf -v __rf_is_true 1
  [[ -n $__rf_is_true ]]
}

# Implements `set -e` for the code: bash runs a trap of ERR exactly where it would exit next.
__rf_set_err_trap() {
  __rf_err_action=$1
  builtin trap -- "{ __rf_record_failure; } &>/dev/null${1:+ || { $1
\}}
{ __rf_exit_on_error; } &>/dev/null" ERR
}

# The trap of the code does not run in its subshells.
__rf_record_failure() {
  __rf_failed_status=$?
  __rf_has_builtin || unset -f builtin
  (($$ != BASHPID)) || builtin return "$__rf_failed_status"
}

__rf_exit_on_error() {
  [[ $- == *e* ]] || builtin return 0
  (($$ == BASHPID)) || builtin exit "$__rf_failed_status"
  __rf_status=$__rf_failed_status
  __rf_unwind
}

# Ends the code, not the shell: only an interrupt unwinds every eval, file, trap and redirection.
exit() {
  # On return, bash restores the options that were set at `local -`.
  { builtin local "__rf_previous=$?"; builtin set +o vi +o emacs; builtin local -; builtin set +ex; } 2>/dev/null
  builtin set -- "${@:-$__rf_previous}"
  (($$ == BASHPID)) || builtin exit "$@"
  __rf_status=0
  if [[ $* =~ ^[0-9]{1,9}$ ]]; then __rf_status=$((10#$1 & 255)); else (builtin exit "$@") || __rf_status=$?; fi
  __rf_unwind
}

__rf_unwind() {
  [[ ${TMOUT:-0} == 0 ]] || __rf_suspend_timeout
  builtin set +o vi +o emacs # or bash would not return to the kernel before its prompt
  builtin trap - INT && builtin kill -INT $$
  __rf_has_builtin || { unset -f builtin; __rf_unwind; }
  while ((1)); do ((1)); done # until the interrupt arrives, possibly with a delay
}

# Bash has reached its prompt after all: after some syntax errors it drops the rest of PROMPT_COMMAND.
__rf_on_prompt() {
  ((__rf_prompts == 1)) || builtin kill -KILL $$ # it cannot return from here
  builtin echo 'bash: syntax error: the code was not parsed to its end' >&252
  builtin kill -INT $$
}

# A trap of ERR is combined with the kernel's; one of RETURN does not run for functions of the kernel, nor at the end of
# the file that runs the code.
trap() {
  { builtin local - IFS=' ' __rf_action __rf_signal; builtin local -a __rf_rest; builtin set +ux; } 2>/dev/null
  [[ ${1-} != -- ]] || builtin shift
  case ${1--p} in
    -p) __rf_print_traps "${@:2}"; builtin return ;;
    -?*) builtin trap "$@"; builtin return ;;
  esac
  (($# > 1)) || builtin set -- - "$1"
  __rf_action=$1
  [[ $1 != - ]] || __rf_action= # or bash would set it again at the end of this function
  for __rf_signal in "${@:2}"; do
    case ${__rf_signal^^}:$1 in
      ERR:*) __rf_set_err_trap "$__rf_action" ;;
      RETURN:*) __rf_set_return_trap "$__rf_action" ;;
      DEBUG:-) builtin trap '' DEBUG ;;
      *) __rf_rest+=("$__rf_signal") ;;
    esac
  done
  ((${#__rf_rest[@]} == 0)) || builtin trap -- "$1" "${__rf_rest[@]}" # last: a trap of DEBUG runs from here on
}

__rf_set_return_trap() {
  __rf_return_action=$1
  [[ -z $1 ]] ||
    builtin set -- 'case ${FUNCNAME-}:${#BASH_SOURCE[@]} in (:0 | trap:* | exit:* | __rf_*) ;; (*) '"$1"$'\n;; esac'
  builtin trap -- "$1" RETURN
}

# Prints the traps of the code, as bash does.
__rf_print_traps() {
  builtin local __rf_result=0
  (($#)) || builtin set -- EXIT {1..31} {34..64} DEBUG ERR RETURN
  for __rf_signal; do
    case ${__rf_signal^^} in
      ERR) __rf_action=$__rf_err_action ;;
      RETURN) __rf_action=$__rf_return_action ;;
      *)
        builtin trap -p "$__rf_signal" || __rf_result=$?
        builtin continue ;;
    esac
    [[ -z $__rf_action ]] || builtin printf 'trap -- %s %s\n' "${__rf_action@Q}" "${__rf_signal^^}"
  done
  builtin return "$__rf_result"
}

# Copies the code's input and output to high descriptors that it does not use by accident, closed on exec: bash sets
# close-on-exec on the descriptors that it saves for a redirection, on the next free numbers, and on copies of those.
exec 240<>/dev/null
{ exec 250<&242 251>&241; } >&240 2>&240
exec >&252
{ exec 252>&241; } >&240
exec >&2 240>&-

set +o history +H
shopt -s execfail
unset HISTFILE
PS1='$((++__rf_prompts))$(__rf_on_prompt)' PS2=$PS1
__rf_id= __rf_status=0 __rf_err_action= __rf_return_action=
__rf_saved_timeout= __rf_saved_command= __rf_saved_pwd= __rf_saved_argv0=
# The code runs in a sourced file, because bash notices there, without a prompt, that jobs have ended. To the left of
# `||` bash itself does not apply `set -e` in it.
readonly __rf_directory=${BASH_SOURCE[0]%/*} PROMPT_COMMAND='__rf_next_request
\command . "$__rf_file" && __rf_status=0 || __rf_status=$?
__rf_unwind'
printf 'ready %s\n' "$BASH_VERSION" >&0
