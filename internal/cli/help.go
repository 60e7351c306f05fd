package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The annotations that help and manual pages are made of.
const (
	annotationExits = "exits"
	annotationEnv   = "environment"
)

// exitText says what each exit status means; docs/cli.md has the same table.
func exitText(status int) string {
	switch status {
	case exitOK:
		return "done"
	case exitFailed:
		return "failed"
	case exitUsage:
		return "usage or invalid input; nothing was done"
	case exitRefused:
		return "refused (quota, permission, a site that does not fit)"
	case exitIncomplete:
		return "the awaited work ended with failures or is incomplete"
	case exitRegression:
		return "a regression was found"
	case exitUnreachable:
		return "the daemon, Slurm or the database cannot be reached"
	}
	return ""
}

// exits notes the exit statuses that a command can return, for its help.
func exits(cmd *cobra.Command, statuses ...int) {
	words := make([]string, len(statuses))
	for i, s := range statuses {
		words[i] = strconv.Itoa(s)
	}
	annotate(cmd, annotationExits, strings.Join(words, " "))
}

func annotate(cmd *cobra.Command, key, value string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[key] = value
}

// section is one part of a manual page; every line of body is indented as is.
type section struct {
	title string
	body  string
}

// manual returns the sections of a command's page, for help and for man.
func manual(cmd *cobra.Command) []section {
	var s []section
	add := func(title, body string) {
		if body = strings.Trim(body, "\n"); body != "" {
			s = append(s, section{title, body})
		}
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	add("NAME", name+" - "+lowerFirst(cmd.Short))
	add("SYNOPSIS", synopsis(cmd))
	add("DESCRIPTION", cmd.Long)
	add("COMMANDS", commandList(cmd))
	add("OPTIONS", flagList(cmd.NonInheritedFlags()))
	add("GLOBAL OPTIONS", flagList(cmd.InheritedFlags()))
	add("ENVIRONMENT", cmd.Annotations[annotationEnv])
	add("EXIT STATUS", exitList(cmd))
	add("EXAMPLES", cmd.Example)
	return s
}

func synopsis(cmd *cobra.Command) string {
	if !cmd.HasAvailableSubCommands() {
		return cmd.UseLine()
	}
	return cmd.CommandPath() + " COMMAND [flags] …"
}

func exitList(cmd *cobra.Command) string {
	var b strings.Builder
	for _, w := range strings.Fields(cmd.Annotations[annotationExits]) {
		n, err := strconv.Atoi(w)
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "%d  %s\n", n, exitText(n))
	}
	return b.String()
}

func commandList(cmd *cobra.Command) string {
	if !cmd.HasAvailableSubCommands() {
		return ""
	}
	groups := []string{}
	titles := map[string]string{"": ""}
	for _, g := range cmd.Groups() {
		groups = append(groups, g.ID)
		titles[g.ID] = g.Title
	}
	groups = append(groups, "")
	width := 0
	for _, c := range cmd.Commands() {
		width = max(width, len(c.Name()))
	}
	var b strings.Builder
	for _, g := range groups {
		var lines []string
		for _, c := range cmd.Commands() {
			if c.GroupID == g && c.IsAvailableCommand() {
				lines = append(lines, fmt.Sprintf("%-*s  %s", width, c.Name(), lowerFirst(c.Short)))
			}
		}
		if len(lines) == 0 {
			continue
		}
		indent := ""
		if titles[g] != "" {
			fmt.Fprintf(&b, "%s:\n", titles[g])
			indent = "  "
		}
		for _, l := range lines {
			b.WriteString(indent + l + "\n")
		}
	}
	return b.String()
}

func flagList(fs *pflag.FlagSet) string {
	var b strings.Builder
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		if f.Shorthand != "" {
			fmt.Fprintf(&b, "-%s, ", f.Shorthand)
		}
		b.WriteString("--" + f.Name)
		switch {
		case value == "" || f.Value.Type() == "bool":
		case f.NoOptDefVal != "":
			fmt.Fprintf(&b, "[=%s]", strings.ToUpper(value))
		default:
			fmt.Fprintf(&b, " %s", strings.ToUpper(value))
		}
		for _, line := range wrap(usage, 70) {
			b.WriteString("\n    " + line)
		}
		b.WriteString("\n")
	})
	return b.String()
}

// wrap breaks text at blanks into lines of at most width runes where it can.
func wrap(text string, width int) []string {
	var lines []string
	line, n := "", 0
	for _, word := range strings.Fields(text) {
		w := len([]rune(word))
		if n > 0 && n+1+w > width {
			lines = append(lines, line)
			line, n = "", 0
		}
		if n > 0 {
			line, n = line+" ", n+1
		}
		line, n = line+word, n+w
	}
	if n > 0 {
		lines = append(lines, line)
	}
	return lines
}

// writeHelp prints a command's page.
func writeHelp(w io.Writer, cmd *cobra.Command) {
	var b strings.Builder
	for i, s := range manual(cmd) {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(s.title + "\n")
		for line := range strings.Lines(s.body) {
			if line = strings.TrimRight(line, "\n"); line != "" {
				b.WriteString("    " + line)
			}
			b.WriteString("\n")
		}
	}
	_, _ = io.WriteString(w, b.String())
}

// walk calls fn for cmd and every visible command below it.
func walk(cmd *cobra.Command, fn func(*cobra.Command)) {
	fn(cmd)
	for _, c := range slices.Clone(cmd.Commands()) {
		walk(c, fn)
	}
}
