package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/version"
)

func newManCommand(*app) *cobra.Command {
	cmd := &cobra.Command{
		Use:    "man DIR",
		Short:  "write a manual page for every command into a directory",
		Hidden: true,
		Args:   nArgs(1, 1, "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			var failed error
			walk(cmd.Root(), func(c *cobra.Command) {
				if failed != nil || c.Hidden || !c.IsAvailableCommand() && c != cmd.Root() {
					return
				}
				name := strings.ReplaceAll(c.CommandPath(), " ", "-")
				if err := os.WriteFile(filepath.Join(args[0], name+".1"), []byte(roff(c, name)), 0o644); err != nil {
					failed = fmt.Errorf("write manual page: %w", err)
				}
			})
			return failed
		},
	}
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

// roff renders a command's manual as a man page.
func roff(cmd *cobra.Command, name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"sbench manual\"\n", strings.ToUpper(name), "sbench "+version.String())
	for _, s := range manual(cmd) {
		fmt.Fprintf(&b, ".SH %s\n", s.title)
		verbatim := s.title != "NAME" && s.title != "DESCRIPTION"
		if verbatim {
			b.WriteString(".nf\n")
		}
		for line := range strings.Lines(s.body) {
			line = strings.TrimRight(line, "\n")
			if line == "" {
				b.WriteString(".PP\n")
				continue
			}
			line = strings.ReplaceAll(line, `\`, `\e`)
			line = strings.ReplaceAll(line, "-", `\-`)
			if line[0] == '.' || line[0] == '\'' {
				line = `\&` + line
			}
			b.WriteString(line + "\n")
		}
		if verbatim {
			b.WriteString(".fi\n")
		}
	}
	return b.String()
}
