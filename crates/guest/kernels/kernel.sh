# The bash kernel of a session: an interactive shell without a terminal, whose input is the control channel.
#
#   bash -c 'exec bash --noprofile --rcfile kernel.sh --noediting -i <&3 3<&- 252>&2 2<>/dev/null'
#
# The host sends a line `ID LENGTH` and LENGTH bytes of code; the kernel answers `ready VERSION` once, then `ID STATUS`
# for each. End of file ends it.
#
# Interactive, because that is the one kind of shell that survives an interrupt, `set -u` and ${x:?} and drops just
# the rest of the code. It never comes to read at its prompt: the code runs before that, where bash takes itself for a
# script and says nothing of terminals and jobs. Input and output of the shell itself are not those of the code: what
# the code does to its own ends with it, and what the kernel does is not traced to it.
#
# An `exec` that succeeds, and `builtin exit`, end the kernel. A trap of INT or DEBUG lasts for one request. Where an
# error of expansion strikes in the text of an `eval`, of a sourced file, or of code with more than 16384 commands,
# just the command that has it is dropped. `set -e` holds in a function that is called with `!` before it. A trap of
# EXIT is for the end of the shell, not of the code; in posix mode `exit` ends the shell. A trap of ERR is heard in
# functions too: the kernel needs `set -E` for itself, and cannot tell it from the code's own.
#
# Code may have functions of any name, so builtins are called by `builtin`, which it cannot have. It may have `command`:
# that is put aside where the code is run, for bash heeds `set -e` to the left of `||` in a `builtin eval`.

# Answers the last request and takes the next.
__rf_turn() {
  __rf_has_builtin || unset -f builtin
  builtin local __rf_length __rf_patience= - # `-`: the options that the code has set do not hold in here
  builtin set +euvx -f
  builtin trap '' INT
  [[ -z $__rf_place ]] || __rf_go_back
  [[ -z $__rf_name ]] || BASH_ARGV0=$__rf_name __rf_name=
  # What the code closed. The last is tried first, for what bash puts aside would take its number.
  ((1)) 2>&252 >&251 <&250 || builtin exit
  [[ -z $__rf_id ]] || builtin printf '%s %s\n' "$__rf_id" "$__rf_status" >&0
  __rf_losses=0 __rf_last=$__rf_status __rf_status=130 # what says nothing of its status was interrupted
  if [[ ${TMOUT:-0} != 0 ]]; then # what was interrupted left it in force, and its clock runs
    builtin trap : ALRM
    __rf_put_timeout_aside
    [[ $TMOUT == 0 ]] || __rf_patience=-t1000000000 # it is read-only
  fi
  IFS=' ' builtin read -r ${__rf_patience:+"$__rf_patience"} __rf_id __rf_length || builtin exit
  IFS= LC_ALL=C builtin read -r ${__rf_patience:+"$__rf_patience"} -N "$__rf_length" __rf_code || builtin exit
  __rf_run="{ $__rf_code"$'\n}'
  if [[ $__rf_code == *alias\ *=* || $__rf_code == *extglob* ]]; then
    builtin mapfile -t __rf_lines <<<"$__rf_code" || __rf_lines=("$__rf_code") # bash may want a file for it
    __rf_next
  elif ! __rf_is_command; then
    __rf_lines=("$__rf_code")
    __rf_next
  fi
  __rf_run="__rf_begin; $__rf_run <&250 >&251 2>&252"
  ! builtin declare -F command || { __rf_command=$(builtin declare -f command); builtin unset -f command; }
  __rf_file=$__rf_directory/cell.sh
  [[ $__rf_code != *BASH_SOURCE* ]] || __rf_take_place
  builtin trap - INT
}

# Takes the next part of the code, as one command, for an error of expansion drops just a command. A part ends with the
# command that may change how bash reads what follows (aliases, extglob). What is no command is read as bash reads a
# script.
__rf_next() {
  __rf_has_builtin || unset -f builtin
  builtin local __rf_line __rf_count=0 __rf_tries=0 IFS=$'\n' -
  [[ $- != *x* ]] || __rf_lines[0]="\\builtin set -x; ${__rf_lines[0]}" # what calls this turns it off
  builtin set +eux -f
  while ((__rf_count < ${#__rf_lines[@]})); do
    __rf_line=${__rf_lines[__rf_count++]}
    ((__rf_tries > 0 || __rf_count == ${#__rf_lines[@]})) ||
      [[ $__rf_line == *alias\ *=* || $__rf_line == *extglob* ]] || builtin continue
    ((++__rf_tries < 100)) || __rf_count=${#__rf_lines[@]} # a long text, rather than a command that is long to end
    __rf_run="{ ${__rf_lines[*]:0:__rf_count}"$'\n}'
    __rf_is_command || builtin continue
    __rf_lines=("${__rf_lines[@]:__rf_count}")
    ((${#__rf_lines[@]} == 0)) ||
      __rf_run="{ $__rf_run; { __rf_next; \\builtin set +x; } 2>/dev/null; "'\builtin eval "$__rf_run"; }'
    builtin return
  done
  __rf_rest="${__rf_lines[*]}" __rf_run='\builtin eval "$__rf_rest"'
  builtin eval : # or bash takes the trial's end for that of the rest
}

# What has too many commands is none: bash calls itself once for each command of a list. Nothing but `esac` and `}`
# could leave the trial too early.
__rf_is_command() {
  if ((${#__rf_run} > 32768)); then
    builtin local IFS=$';&|\n'
    builtin set -- $__rf_run
    (($# <= 16384)) || builtin return
  fi
  builtin eval "__rf_trial() { case . in (.) $__rf_run;; esac; }" 2>/dev/null && builtin unset -f __rf_trial
}

# The last thing before the code, which sees the status of the code before it.
__rf_begin() {
  [[ -z $__rf_place ]] || __rf_go_back
  builtin set -E
  __rf_trap_errors "$__rf_on_error"
  [[ -z $__rf_timeout ]] || TMOUT=$__rf_timeout __rf_timeout=
  [[ -z $__rf_command ]] || { builtin eval "$__rf_command"; __rf_command=; }
  builtin return "$__rf_last"
}

# To code that asks for it, its file is one in its own directory, and the script that is run if it asks for that too.
__rf_take_place() {
  builtin local "__rf_here=$PWD" "__rf_before=${OLDPWD-}"
  [[ $PWD == /* && . -ef $PWD ]] && builtin cd "$__rf_directory" || builtin return
  __rf_place=$__rf_here __rf_place_before=$__rf_before __rf_file=./cell.sh
  [[ $__rf_code != *'$0'* && $__rf_code != *'${0'* ]] || __rf_name=$0 BASH_ARGV0=$__rf_file
}

__rf_go_back() {
  builtin cd "$__rf_place"
  OLDPWD=$__rf_place_before __rf_place=
  [[ -n $OLDPWD ]] || builtin unset OLDPWD
}

# Bash would end a shell for which the next request is long in coming.
__rf_put_timeout_aside() {
  [[ ${TMOUT@a} == *r* ]] || __rf_timeout=$TMOUT TMOUT=0
}

# A function of that name would leave the kernel without a way to read and to answer.
__rf_has_builtin() {
  __rf_is_true=
  builtin printf -v __rf_is_true 1
  [[ -n $__rf_is_true ]]
}

# `set -e` for the code: bash runs a trap of ERR where, and only where, it would leave the shell next.
__rf_trap_errors() {
  __rf_on_error=$1
  builtin trap -- "{ __rf_failed; } &>/dev/null${1:+ || { $1
\}}
{ __rf_leave; } &>/dev/null" ERR
}

# The trap that the code has set is not for its subshells.
__rf_failed() {
  __rf_failure=$?
  __rf_has_builtin || unset -f builtin
  (($$ != BASHPID)) || builtin return "$__rf_failure"
}

__rf_leave() {
  [[ $- == *e* ]] || builtin return 0
  (($$ == BASHPID)) || builtin exit "$__rf_failure"
  __rf_status=$__rf_failure
  __rf_unwind
}

# Leaves the code, not the shell: an interrupt is what unwinds every eval, file, trap and redirection.
exit() {
  # Bash sets again, in the end, what was set at `local -`.
  { builtin local "__rf_before=$?"; builtin set +o vi +o emacs; builtin local -; builtin set +ex; } 2>/dev/null
  builtin set -- "${@:-$__rf_before}"
  (($$ == BASHPID)) || builtin exit "$@"
  __rf_status=0
  if [[ $* =~ ^[0-9]{1,9}$ ]]; then __rf_status=$((10#$1 & 255)); else (builtin exit "$@") || __rf_status=$?; fi
  __rf_unwind
}

__rf_unwind() {
  [[ ${TMOUT:-0} == 0 ]] || __rf_put_timeout_aside
  builtin set +o vi +o emacs # or bash would not come back to the kernel before its prompt
  builtin trap - INT && builtin kill -INT $$
  __rf_has_builtin || { unset -f builtin; __rf_unwind; }
  while ((1)); do ((1)); done # until it strikes, which it does not always at once
}

# Bash has come to its prompt after all: some errors of syntax make it forget what it was about to do.
__rf_lost() {
  ((__rf_losses == 1)) || builtin kill -KILL $$ # it does not come back from here
  builtin echo 'bash: syntax error: the code is not read to its end' >&252
  builtin kill -INT $$
}

# A trap of ERR is set beside the kernel's; one of RETURN does not hear the kernel's own functions, nor the end of the
# file that the code runs in.
trap() {
  { builtin local - IFS=' ' __rf_action __rf_name; builtin local -a __rf_rest; builtin set +ux; } 2>/dev/null
  [[ ${1-} != -- ]] || builtin shift
  case ${1--p} in
    -p) __rf_show_traps "${@:2}"; builtin return ;;
    -?*) builtin trap "$@"; builtin return ;;
  esac
  (($# > 1)) || builtin set -- - "$1"
  __rf_action=$1
  [[ $1 != - ]] || __rf_action= # or bash would set it again at the end of this function
  for __rf_name in "${@:2}"; do
    case ${__rf_name^^}:$1 in
      ERR:*) __rf_trap_errors "$__rf_action" ;;
      RETURN:*) __rf_trap_returns "$__rf_action" ;;
      DEBUG:-) builtin trap '' DEBUG ;;
      *) __rf_rest+=("$__rf_name") ;;
    esac
  done
  ((${#__rf_rest[@]} == 0)) || builtin trap -- "$1" "${__rf_rest[@]}" # last, for one of DEBUG hears all after it
}

__rf_trap_returns() {
  __rf_on_return=$1
  [[ -z $1 ]] ||
    builtin set -- 'case ${FUNCNAME-}:${#BASH_SOURCE[@]} in (:0 | trap:* | exit:* | __rf_*) ;; (*) '"$1"$'\n;; esac'
  builtin trap -- "$1" RETURN
}

# The code's own traps, as bash prints them.
__rf_show_traps() {
  builtin local __rf_result=0
  (($#)) || builtin set -- EXIT {1..31} {34..64} DEBUG ERR RETURN
  for __rf_name; do
    case ${__rf_name^^} in
      ERR) __rf_action=$__rf_on_error ;;
      RETURN) __rf_action=$__rf_on_return ;;
      *)
        builtin trap -p "$__rf_name" || __rf_result=$?
        builtin continue ;;
    esac
    [[ -z $__rf_action ]] || builtin printf 'trap -- %s %s\n' "${__rf_action@Q}" "${__rf_name^^}"
  done
  builtin return "$__rf_result"
}

# The code's input and output are kept where it does not come across them, and closed for other programs. So is what
# bash puts aside for the time of a redirection, on the next number that is free, and so are copies of that.
exec 240<>/dev/null
{ exec 250<&242 251>&241; } >&240 2>&240
exec >&252
{ exec 252>&241; } >&240
exec >&2 240>&-

set +o history +H
shopt -s execfail
unset HISTFILE
PS1='$((++__rf_losses))$(__rf_lost)' PS2=$PS1
__rf_id= __rf_status=0 __rf_on_error= __rf_on_return= __rf_timeout= __rf_command= __rf_place= __rf_name=
# A file that is sourced is where bash takes note of jobs that have ended, without a prompt. To the left of `||` bash
# itself does not heed `set -e` in it.
readonly __rf_directory=${BASH_SOURCE[0]%/*} PROMPT_COMMAND='__rf_turn
\command . "$__rf_file" && __rf_status=0 || __rf_status=$?
__rf_unwind'
printf 'ready %s\n' "$BASH_VERSION" >&0
