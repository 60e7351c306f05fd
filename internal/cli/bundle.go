package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/aggregate"
	"sbench/internal/api"
	"sbench/internal/bundle"
	"sbench/internal/result"
	"sbench/internal/resultfile"
)

// maxBundle bounds what a bundle may unpack to.
const maxBundle = 32 << 30

func newBundleCommand(a *app) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "bundle RUN",
		Short: "pack everything that is needed to understand and repeat a run",
		Long: `Writes one archive about the latest sealed attempt of a run: the sweep file as it
was submitted, the canonical spec, the realized environment, the planned requests
with their seeds and input files, the batch script, the raw Parquet files and the
logs. Every file's digest is checked before the archive gets its name. sbench rerun
repeats the run; tar xzf unpacks it.`,
		Example: "sbench bundle 4711\nsbench bundle 4711 -o regression.tar.gz",
		Args:    nArgs(1, 1, "RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := positiveID("run", args[0])
			if err != nil {
				return err
			}
			return a.bundle(cmd.Context(), id, cmp.Or(out, fmt.Sprintf("sbench-run-%d.tar.gz", id)))
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the `file` to write (default sbench-run-RUN.tar.gz)")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func (a *app) bundle(ctx context.Context, run int64, name string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".sbench-*.tar.gz")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = errors.Join(a.client().Bundle(ctx, f, run), f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}
	info, _, err := readBundle(f.Name(), nothing)
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.stdout, info)
	}
	a.print("%s: run %d of sweep %d, setting %s, %s\n", name, info.Run, info.Sweep, short(info.SettingHash), plural(len(info.Files), "file"))
	return nil
}

func nothing(string) bool { return false }

// readBundle verifies a bundle and returns the entries that keep accepts.
func readBundle(name string, keep func(string) bool) (bundle.Info, map[string][]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return bundle.Info{}, nil, err
	}
	defer f.Close()
	info, files, err := bundle.Read(f, maxBundle, keep)
	if err != nil {
		return info, nil, fmt.Errorf("%s: %w", name, err)
	}
	return info, files, nil
}

type rerunOptions struct {
	site, partition, account, qos, nodelist string
	parsable, testOnly, wait                bool
}

func newRerunCommand(a *app) *cobra.Command {
	o := &rerunOptions{}
	cmd := &cobra.Command{
		Use:   "rerun BUNDLE",
		Short: "repeat the run of a bundle: same setting, same plan, same seeds",
		Long: `Submits one run of the setting that a bundle holds, with the repeat number, and so
the arrival times, lengths and prompts, of the bundled run. The setting's digests
are pinned as they were: an image or a checkpoint that has changed is refused. With
--wait both runs' metrics are printed side by side.`,
		Example: "sbench rerun --wait sbench-run-4711.tar.gz\nsbench rerun -w node17 sbench-run-4711.tar.gz",
		Args:    nArgs(1, 1, "BUNDLE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(a, cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.site, "site", "", "run on cluster `name` instead of the bundle's")
	f.StringVarP(&o.partition, "partition", "p", "", "submit to partition `name`")
	f.StringVarP(&o.account, "account", "A", "", "charge `account`")
	f.StringVarP(&o.qos, "qos", "q", "", "use the quality of service `qos`")
	f.StringVarP(&o.nodelist, "nodelist", "w", "", "run on these `nodes` only")
	f.BoolVar(&o.parsable, "parsable", false, "print the sweep's id alone")
	f.BoolVar(&o.testOnly, "test-only", false, "print the plan and submit nothing")
	f.BoolVarP(&o.wait, "wait", "W", false, "wait until the run has ended, and compare")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitIncomplete, exitUnreachable)
	return cmd
}

func (o *rerunOptions) run(a *app, ctx context.Context, name string) error {
	if o.testOnly && (o.wait || o.parsable) {
		return usagef("--test-only submits nothing: it does not go with --wait or --parsable")
	}
	info, files, err := readBundle(name, func(f string) bool {
		return f == bundle.SweepFile || f == bundle.AttemptDir+result.ResultFile
	})
	if errors.Is(err, bundle.ErrDamaged) {
		return &failure{status: exitUsage, message: err.Error(), hint: "sbench bundle RUN writes it anew"}
	}
	if err != nil {
		return err
	}
	options, err := o.options(info)
	if err != nil {
		return err
	}
	c := a.client()
	resp, err := c.Submit(ctx, api.SubmitRequest{
		IdempotencyKey: strings.ToLower(rand.Text()), FileName: filepath.Base(name) + "/" + bundle.SweepFile,
		File: string(files[bundle.SweepFile]), Options: options, TestOnly: o.testOnly,
	})
	if err != nil {
		return err
	}
	if err := a.submitted(resp, o.testOnly, o.wait, o.parsable); err != nil || !o.wait {
		return err
	}
	verdict := a.waitAndJudge(ctx, c, resp.SweepID)
	var incomplete *failure
	if verdict != nil && !errors.As(verdict, &incomplete) || a.json {
		return verdict
	}
	if err := a.beside(ctx, c, resp.SweepID, info, files[bundle.AttemptDir+result.ResultFile]); err != nil {
		return errors.Join(verdict, err)
	}
	return verdict
}

// options are the bundled submission's, less what was of its day.
func (o *rerunOptions) options(info bundle.Info) (api.Options, error) {
	var out api.Options
	if err := json.Unmarshal(info.Options, &out); err != nil {
		return out, &failure{status: exitUsage, message: fmt.Sprintf("the bundle's options are not readable: %v", err)}
	}
	one := 1
	out.Repeats, out.Only = &one, &api.Only{SettingHash: info.SettingHash, Repeat: info.Repeat}
	out.Begin, out.Hold, out.Dependency, out.MailType, out.MailUser = nil, false, "", nil, ""
	out.MaxInflight, out.MaxGPUHours, out.MaxCost, out.NodeList, out.Force = nil, nil, nil, o.nodelist, true
	if o.site != "" && o.site != out.Site {
		// What the site chose, or what was chosen for it, means nothing elsewhere.
		out.Site, out.Partition, out.Account, out.QOS, out.Reservation, out.ExcludeNodes = o.site, "", "", "", "", ""
	}
	out.Partition, out.Account, out.QOS = cmp.Or(o.partition, out.Partition), cmp.Or(o.account, out.Account), cmp.Or(o.qos, out.QOS)
	out.JobName = fmt.Sprintf("rerun-%d", info.Run)
	return out, nil
}

// beside prints the bundled run's metrics and the new one's.
func (a *app) beside(ctx context.Context, c *api.Client, sweep int64, info bundle.Info, parquet []byte) error {
	if parquet == nil {
		a.message("run %d was not measured: there is nothing to compare with", info.Run)
		return nil
	}
	before, err := resultfile.DecodeResult(bytes.NewReader(parquet), int64(len(parquet)))
	if err != nil {
		return fmt.Errorf("read the bundle's result: %w", err)
	}
	r, err := c.Results(ctx, sweep, aggregate.Headline()...)
	if err != nil {
		return err
	}
	t := newTable("METRIC", fmt.Sprintf("RUN_%d>", info.Run), fmt.Sprintf("SWEEP_%d>", sweep), "RATIO>")
	for _, s := range r.Settings {
		for _, name := range aggregate.Headline() {
			m, ok := s.Metrics[name]
			old := before.Metrics[strings.TrimSuffix(name, "_merged")]
			if !ok || old == nil {
				continue
			}
			ratio := "-"
			if m.Mean != nil && *old != 0 {
				ratio = fmt.Sprintf("%.3f", *m.Mean / *old)
			}
			t.add(withUnit(name), number(old), number(m.Mean), ratio)
		}
	}
	t.print(a, tableFlags{})
	if before.Attempt.HardwareClass != "real" {
		a.print("emulated hardware: the bundled run was %s\n", before.Attempt.HardwareClass)
	}
	a.message("one run beside one run: a difference within the noise of runs says nothing")
	return nil
}
