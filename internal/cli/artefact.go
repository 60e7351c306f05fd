package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/runner/stage"
)

// newArtefactCommand makes sbench checkpoint or sbench image: the registry of one
// kind of artefact.
func newArtefactCommand(a *app, kind string) *cobra.Command {
	what := map[string]string{
		api.ArtefactCheckpoint: `A checkpoint is a file, or a folder of weights, tokenizer and configuration; its
digest is the SHA-256 of a list with a line "sha256  size  relative path" for
each file.`,
		api.ArtefactImage: `An image is a SIF file; its digest is the SHA-256 of the file.`,
	}[kind]
	cmd := &cobra.Command{
		Use:   kind + " COMMAND",
		Short: "the registry of " + kind + "s: digest once, find by digest, restrict to accounts",
		Long: what + ` A sweep that gives the digest of a registered
` + kind + ` needs no path. The node that measures it hashes it all the same: the
registry says where it lies, and proves nothing.`,
	}
	cmd.AddCommand(newArtefactAddCommand(a, kind), newArtefactListCommand(a, kind), newArtefactShowCommand(a, kind), newArtefactRestrictCommand(a, kind))
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newArtefactAddCommand(a *app, kind string) *cobra.Command {
	var req api.ArtefactRequest
	var accounts []string
	cmd := &cobra.Command{
		Use: "add PATH", Short: "hash a " + kind + " and register it", Args: nArgs(1, 1, "PATH"),
		Long: `Hashes PATH, files side by side, and registers the digest with the path: give the
path as the site's nodes see it. When it is interrupted, the next call goes on
where it stopped. A ` + kind + ` that is registered already gets the further path.
Prints the digest.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Kind, req.Accounts = kind, accounts
			added, err := addArtefact(cmd.Context(), a, req, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, added)
			}
			fmt.Fprintln(a.stdout, added.Digest)
			if !added.Created {
				fmt.Fprintf(a.stderr, "sbench: it was registered by %s on %s\n", added.AddedBy, clock(&added.AddedAt))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&req.Site, "site", "", "`NAME` of the site whose nodes see the path (default: the only one)")
	cmd.Flags().StringVar(&req.Name, "name", "", "`NAME` for people")
	cmd.Flags().StringSliceVar(&accounts, "accounts", nil, "only these `ACCOUNTS` may measure it (default: all)")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func addArtefact(ctx context.Context, a *app, req api.ArtefactRequest, path string) (api.Artefact, error) {
	var none api.Artefact
	path, err := filepath.Abs(path)
	if err != nil {
		return none, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return none, &failure{status: exitUsage, message: err.Error()}
	}
	if req.Kind == api.ArtefactImage && info.IsDir() {
		return none, &failure{
			status: exitUsage, message: fmt.Sprintf("%s is a folder: a sandbox's content can change while a sweep runs", path),
			hint: "apptainer build image.sif FOLDER",
		}
	}
	// Minutes of hashing are not to be for nothing.
	if _, err := a.client().Version(ctx); err != nil {
		return none, err
	}
	sum := sha256.Sum256([]byte(path))
	saved := filepath.Join(stateFolder(a), "digests", hex.EncodeToString(sum[:])+".json")
	bar := newHashProgress(a)
	found, err := stage.Resumable(ctx, path, saved, bar.show)
	bar.close()
	if err != nil {
		if errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: what was hashed is kept, and the next call goes on", err)
		}
		return none, err
	}
	req.Path, req.Digest, req.Bytes, req.Files = path, found.Digest, found.Size, found.Files
	req.Manifest = []api.ArtefactFile{}
	for _, e := range found.Manifest {
		req.Manifest = append(req.Manifest, api.ArtefactFile(e))
	}
	return a.client().AddArtefact(ctx, req)
}

// stateFolder is where commands keep what they must not lose.
func stateFolder(a *app) string {
	if dir := a.env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sbench")
	}
	if home := a.env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "sbench")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("sbench-%d", os.Getuid()))
}

// hashProgress shows on stderr how far the hashing is: a line that changes on a
// terminal, else a line now and then.
type hashProgress struct {
	a        *app
	terminal bool
	mu       sync.Mutex
	began    time.Time
	next     time.Time
	shown    bool
}

func newHashProgress(a *app) *hashProgress {
	p := &hashProgress{a: a, terminal: isTerminal(a.stderr) && a.env("TERM") != "dumb", began: a.now()}
	p.next = p.began.Add(p.pause())
	return p
}

func (p *hashProgress) pause() time.Duration {
	if p.terminal {
		return 200 * time.Millisecond
	}
	return 10 * time.Second
}

// show may be called concurrently.
func (p *hashProgress) show(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.a.now()
	if p.a.json || now.Before(p.next) || total == 0 {
		return
	}
	p.next, p.shown = now.Add(p.pause()), true
	text := fmt.Sprintf("%s of %s hashed (%.0f %%)", gigabytes(done), gigabytes(total), 100*float64(done)/float64(total))
	if seconds := now.Sub(p.began).Seconds(); seconds > 1 && done > 0 {
		rate := float64(done) / seconds
		text += fmt.Sprintf(", %s/s, about %s left", gigabytes(int64(rate)), span(time.Duration(float64(total-done)/rate*1e9)))
	}
	if p.terminal {
		_, _ = fmt.Fprintf(p.a.stderr, "\r\x1b[K%s", text)
		return
	}
	_, _ = fmt.Fprintf(p.a.stderr, "sbench: %s\n", text)
}

func (p *hashProgress) close() {
	if p.terminal && p.shown {
		_, _ = fmt.Fprint(p.a.stderr, "\r\x1b[K")
	}
}

func gigabytes(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%d bytes", n)
}

func newArtefactListCommand(a *app, kind string) *cobra.Command {
	var t tableFlags
	cmd := &cobra.Command{
		Use: "list", Short: "list the registered " + kind + "s", Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client().Artefacts(cmd.Context(), kind)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, list)
			}
			tab := newTable("DIGEST", "NAME", "SIZE>", "FILES>", "ACCOUNTS", "BY", "SINCE", "PLACES")
			for _, x := range list {
				tab.add(shortDigest(x.Digest), dash(x.Name), gigabytes(x.Bytes), x.Files, accountsText(x.Accounts), x.AddedBy, clock(&x.AddedAt), placesText(x.Places))
			}
			tab.print(a, t)
			return nil
		},
	}
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

func shortDigest(digest string) string {
	return "sha256:" + short(strings.TrimPrefix(digest, "sha256:"))
}

func accountsText(accounts []string) string {
	switch {
	case accounts == nil:
		return "all"
	case len(accounts) == 0:
		return "none"
	}
	return strings.Join(accounts, ",")
}

func placesText(places []api.ArtefactPlace) string {
	list := make([]string, len(places))
	for i, p := range places {
		list[i] = p.Site + ":" + p.Path
	}
	return dash(strings.Join(list, " "))
}

// findArtefact returns the artefact of a digest, or of the only one that begins so.
func findArtefact(ctx context.Context, a *app, kind, text string) (string, error) {
	digest := strings.TrimPrefix(text, "sha256:")
	if len(digest) == 64 {
		return "sha256:" + digest, nil
	}
	list, err := a.client().Artefacts(ctx, kind)
	if err != nil {
		return "", err
	}
	var found []string
	for _, x := range list {
		if len(digest) >= 6 && strings.HasPrefix(x.Digest, "sha256:"+digest) || x.Name != "" && x.Name == text {
			found = append(found, x.Digest)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", &failure{status: exitFailed, message: fmt.Sprintf("no %s has the digest or name %s", kind, text), hint: "sbench " + kind + " list shows all"}
	}
	return "", &failure{status: exitUsage, message: fmt.Sprintf("%d %ss are meant by %s", len(found), kind, text), hint: "give more of the digest"}
}

func newArtefactShowCommand(a *app, kind string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show DIGEST", Short: "show a " + kind + " with its places and files", Args: nArgs(1, 1, "DIGEST"),
		Long: `DIGEST may be the beginning of one, of six digits or more, or a name.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			digest, err := findArtefact(cmd.Context(), a, kind, args[0])
			if err != nil {
				return err
			}
			x, err := a.client().Artefact(cmd.Context(), digest)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, x)
			}
			fmt.Fprintf(a.stdout, "digest    %s\nkind      %s\nname      %s\nsize      %d bytes\nfiles     %d\naccounts  %s\nadded     %s by %s\n",
				x.Digest, x.Kind, dash(x.Name), x.Bytes, x.Files, accountsText(x.Accounts), clock(&x.AddedAt), x.AddedBy)
			for _, p := range x.Places {
				fmt.Fprintf(a.stdout, "place     %s:%s (%s, %s)\n", p.Site, p.Path, p.AddedBy, clock(&p.AddedAt))
			}
			for _, f := range x.Manifest {
				fmt.Fprintf(a.stdout, "%s  %d  %s\n", f.SHA256, f.Size, f.Path)
			}
			return nil
		},
	}
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

func newArtefactRestrictCommand(a *app, kind string) *cobra.Command {
	var accounts []string
	var everybody bool
	cmd := &cobra.Command{
		Use: "restrict DIGEST", Short: "say which accounts may measure a " + kind, Args: nArgs(1, 1, "DIGEST"),
		Long: `For who registered it, and for operators. Sweeps that were submitted already are
not touched.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if everybody == (len(accounts) > 0) {
				return &failure{status: exitUsage, message: "give either --accounts or --everybody"}
			}
			digest, err := findArtefact(cmd.Context(), a, kind, args[0])
			if err != nil {
				return err
			}
			x, err := a.client().RestrictArtefact(cmd.Context(), digest, accounts)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, x)
			}
			fmt.Fprintf(a.stderr, "sbench: %s %s: accounts %s\n", kind, shortDigest(x.Digest), accountsText(x.Accounts))
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&accounts, "accounts", nil, "only these `ACCOUNTS`")
	cmd.Flags().BoolVar(&everybody, "everybody", false, "all accounts")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}
