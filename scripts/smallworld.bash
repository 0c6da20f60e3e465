# bash completion for smallworld. It asks the program itself for its commands, options and keys.
_smallworld() {
    local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=("${COMP_WORDS[@]:1:COMP_CWORD - 1}") words= IFS=$' \t\n'
    COMPREPLY=()
    if [[ ${command[0]} == bench ]]; then
        command=("${command[@]:0:2}")
    else
        command=("${command[@]:0:1}")
    fi
    if [[ $COMP_CWORD == 1 || ($COMP_CWORD == 2 && $before == @(help|bench)) ]]; then
        [[ $before == help ]] && command=()
        words=$("$program" "${command[@]}" --help 2>/dev/null | sed -nE 's/^  ([a-z]+) .*/\1/p')
        [[ $COMP_CWORD == 1 ]] && words+=" help"
    elif [[ $before == --set ]]; then
        compopt -o nospace 2>/dev/null
        words=$("$program" train --help-config 2>/dev/null |
            sed -nE '/^[a-z]+:$/ {s/:$//; h}; /^  [a-z0-9_]+ \(/ {s/^  ([a-z0-9_]+) .*/\1=/; G; s/(.*)\n(.*)/\2.\1/; p}')
    elif [[ $word == -* ]]; then
        words=$("$program" "${command[@]}" --help 2>/dev/null | sed -nE 's/^ {2,6}(-., )?(--[a-z-]+).*/\2/p')
    else
        compopt -o filenames 2>/dev/null
        IFS=$'\n' COMPREPLY=($(compgen -f -- "$word"))
        return
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -F _smallworld smallworld
