#!/usr/bin/env python3
"""Makes the man pages and the completion for bash from the program's own texts: --help of each command,
and `train --help-config`.

    scripts/make_manual.py PROGRAM OUT

Writes OUT/smallworld.1, OUT/smallworld-COMMAND.1, OUT/smallworld-bench-NAME.1 and OUT/smallworld.bash.
"""

import re
import subprocess
import sys
from pathlib import Path

# ------------------------------------------------------------------------------- reading --help --


def output(*command):
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
    return done.stdout


class Help:
    """usage [line], about, options [(names, argument, text)], rest: what follows the options."""

    OPTION = re.compile(r"^ {2,6}(-\S, )?--([a-z-]+)(?:=(\S+))?(?: {2,}(\S.*))?$")
    SHORT = re.compile(r"^ {2}-\?, --help ")

    def __init__(self, text):
        self.usage, self.about, self.options, rest = [], [], [], []
        for line in text.splitlines():
            option = self.OPTION.match(line)
            if line.startswith("Usage: ") or line.startswith("  or:  "):
                self.usage.append(line[7:])
            elif rest or re.match(r"\S.*:$", line):  # "Example:"
                rest.append(line)
            elif option:
                short, name, argument, words = option.groups()
                names = f"{short or ''}--{name}"
                self.options.append([names, argument or "", words or ""])
            elif self.options and line.startswith(" " * 20):
                self.options[-1][2] = f"{self.options[-1][2]} {line.strip()}".strip()
            elif line.strip() and not self.options and not line.startswith(" Device"):
                self.about.append(line.strip())
        self.about, self.rest = " ".join(self.about), "\n".join(rest).strip("\n")

    def names(self):
        return [name.split("--")[1] for name, _, _ in self.options]


def listed(program, *command):
    """{name: summary} of what a command's help lists."""
    return dict(re.findall(r"(?m)^  ([a-z]+) +(\S.*)$", output(program, *command, "--help")))


def read(program):
    """(version, {command: summary}, {benchmark: summary}, {command: Help}, {key: text}); the benchmarks
    are commands of two words, "bench NAME"."""
    version = output(program, "--version").split()[1]
    summaries, benchmarks = listed(program), listed(program, "bench")
    commands = [*(name for name in summaries if name != "bench"),
                *(f"bench {name}" for name in benchmarks)]
    helps = {command: Help(output(program, *command.split(), "--help")) for command in commands}
    keys, section = {}, ""
    for line in output(program, "train", "--help-config").splitlines():
        if re.match(r"^[a-z]+:$", line):
            section = line[:-1]
        elif match := re.match(r"^  ([a-z0-9_]+) (\(.*)$", line):
            last = f"{section}.{match.group(1)}"
            keys[last] = match.group(2)
        elif line.strip():
            keys[last] += " " + line.strip()
    return version, summaries, benchmarks, helps, keys


# ------------------------------------------------------------------------------------ man pages --


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in ".'" else line for line in text.split("\n"))


def page(name, version, summary, sections):
    """sections: [(title, roff)]"""
    head = [f'.TH "{name.upper()}" "1" "" "smallworld {version}" "smallworld"',
            ".SH NAME", f"{roff(name)} \\- {roff(summary)}"]
    return "\n".join(head + [line for title, body in sections if body
                             for line in (f".SH {title}", body)]) + "\n"


def terms(pairs):
    return "\n".join(f".TP\n{term}\n{text}" for term, text in pairs)


def bold(option, argument):
    return f"\\fB{roff(option)}\\fR" + (f"=\\fI{roff(argument)}\\fR" if argument else "")


def literal(text):
    return f".nf\n{roff(text)}\n.fi" if text else ""


def command_page(command, version, summary, help_, keys):
    options = terms((bold(name, argument), roff(text)) for name, argument, text in help_.options)
    sections = [("SYNOPSIS", literal("\n".join(help_.usage))), ("DESCRIPTION", roff(help_.about)),
                ("OPTIONS", options)]
    if command == "train":
        listed = terms((f"\\fB{roff(key)}\\fR", roff(text)) for key, text in keys.items())
        sections.append(("KEYS OF A CONFIG", listed))
    if help_.rest:
        title, _, body = help_.rest.partition("\n")
        sections.append((roff(title.rstrip(":").upper()), literal(body.strip("\n"))))
    sections.append(("SEE ALSO", "smallworld(1)"))
    return page(f"smallworld-{command.replace(' ', '-')}", version, summary, sections)


def list_of_pages(summaries, prefix):
    return terms((f"\\fB{prefix}\\-{name}\\fR(1)", roff(summary)) for name, summary in summaries.items())


def bench_page(version, summary, benchmarks):
    return page("smallworld-bench", version, summary, [
        ("SYNOPSIS", "\\fBsmallworld bench\\fR \\fINAME\\fR [\\fIOPTION\\fR...]"),
        ("BENCHMARKS", list_of_pages(benchmarks, "smallworld\\-bench")),
        ("SEE ALSO", "smallworld(1)")])


def main_page(version, summaries):
    commands = list_of_pages(summaries, "smallworld")
    return page("smallworld", version, "train byte-level LSTMs that are sparse along graphs", [
        ("SYNOPSIS", "\\fBsmallworld\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR...]"),
        ("DESCRIPTION", "Trains wide LSTMs that are block\\-sparse along small\\-world graphs, on bytes."),
        ("COMMANDS", commands),
        ("EXIT STATUS", terms([("0", "Done."), ("1", "Failed; one line on standard error says why."),
                               ("2", "The command line is wrong."),
                               ("128 + N", "Stopped by signal N, with all that is needed to go on.")]))])


# ----------------------------------------------------------------------------------- completion --

BASH = """\
# bash completion for smallworld; made by scripts/make_manual.py
_smallworld() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} options=
    local IFS=$' \\t\\n'
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ] || {{ [ "$COMP_CWORD" -eq 2 ] && [ "$before" = help ]; }}; then
        local commands="{commands}"
        [ "$before" = help ] || commands+=" help"
        COMPREPLY=($(compgen -W "$commands" -- "$word"))
        return
    fi
    local command=${{COMP_WORDS[1]}}
    if [ "$command" = bench ]; then
        if [ "$COMP_CWORD" -eq 2 ]; then
            COMPREPLY=($(compgen -W "{benchmarks}" -- "$word"))
            return
        fi
        command="bench ${{COMP_WORDS[2]}}"
    fi
    case "$before" in
        --set)
            compopt -o nospace 2>/dev/null
            COMPREPLY=($(compgen -W "{keys}" -S = -- "$word"))
            return ;;
{values}
    esac
    case "$command" in
{cases}
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    else
        compopt -o filenames 2>/dev/null
        local IFS=$'\\n'
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -F _smallworld smallworld
"""


def choices(text):
    """What an option's text lists as 'a (default), b or c' or as 'one (a) or the other (b)', or []"""
    text = text.replace(" (default)", "")
    listed = re.search(r"(?:^|: )((?:[a-z0-9_]+, )*[a-z0-9_]+ or [a-z0-9_]+)\b", text)
    return re.split(r", | or ", listed.group(1)) if listed else re.findall(r"\(([a-z0-9_]+)\)", text)


def bash_completion(summaries, benchmarks, helps, keys):
    values = {}
    for help_ in helps.values():
        for name, argument, text in help_.options:
            if argument.startswith("NAME") and (words := choices(text)):
                values[name.split(", ")[-1]] = words
    return BASH.format(
        commands=" ".join(summaries), benchmarks=" ".join(benchmarks), keys=" ".join(keys),
        values="\n".join(f'        {name}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); '
                         "return ;;" for name, words in values.items()),
        cases="\n".join(f'        "{command}") options="{" ".join("--" + n for n in help_.names())}" ;;'
                        for command, help_ in helps.items()))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    version, summaries, benchmarks, helps, keys = read(program)
    out.mkdir(parents=True, exist_ok=True)
    (out / "smallworld.1").write_text(main_page(version, summaries))
    (out / "smallworld-bench.1").write_text(bench_page(version, summaries["bench"], benchmarks))
    for command, help_ in helps.items():
        summary = summaries.get(command) or benchmarks[command.split()[1]]
        text = command_page(command, version, summary, help_, keys)
        (out / f"smallworld-{command.replace(' ', '-')}.1").write_text(text)
    (out / "smallworld.bash").write_text(bash_completion(summaries, benchmarks, helps, keys))


if __name__ == "__main__":
    main()
