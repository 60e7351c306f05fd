package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

type regressionsOptions struct {
	sweep int64
	site  string
	since string
	wait  bool
	all   bool
	table tableFlags
}

func newRegressionsCommand(a *app) *cobra.Command {
	o := &regressionsOptions{}
	cmd := &cobra.Command{
		Use:   "regressions [SWEEP]",
		Short: "show what got slower in the nights of the schedules",
		Long: `Each night of a schedule is judged along the history of its series: what looks
worse is run again, and what is worse again is published, so that at most one in
twenty of the published is a false alarm. Where a digest or a version changed,
the old and the new setting are run again side by side; where nothing pinned
changed, the same setting is run again beside the site's reference setting, and
the unpinned differences of the environments are listed. Nodes that are off over
many settings are named.

Without SWEEP the latest night of each schedule is shown, with --since all nights
from then on. Ends with 5 where a regression was published, with 4 where a night
that is shown is not judged yet.`,
		Example: "sbench regressions\nsbench regressions 42 --wait\nsbench regressions --since now-30days --json",
		Args:    nArgs(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				id, err := positiveID("sweep", args[0])
				if err != nil {
					return err
				}
				o.sweep = id
			}
			return o.run(a, cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.site, "site", "", "nights of this `site` only")
	f.StringVarP(&o.since, "since", "S", "", "all nights from this `time` on")
	f.BoolVarP(&o.wait, "wait", "W", false, "wait until SWEEP is judged")
	f.BoolVar(&o.all, "all", false, "show the candidates that were not confirmed as well")
	addTableFlags(f, &o.table)
	exits(cmd, exitOK, exitFailed, exitUsage, exitIncomplete, exitRegression, exitUnreachable)
	return cmd
}

func (o *regressionsOptions) run(a *app, cmd *cobra.Command) error {
	q := api.NightsQuery{Sweep: o.sweep, Site: o.site}
	switch {
	case o.wait && o.sweep == 0:
		return usagef("--wait waits for one SWEEP: name it")
	case o.sweep != 0 && (o.site != "" || o.since != ""):
		return usagef("SWEEP names one night: --site and --since select among many")
	case o.since != "":
		t, err := pastTime(o.since, a.now())
		if err != nil {
			return usagef("--since: %v", err)
		}
		q.Since = t
	}
	nights, err := o.nights(cmd.Context(), a, q)
	if err != nil {
		return err
	}
	if a.json {
		err = writeJSON(a.stdout, nights)
	} else {
		o.print(a, nights)
	}
	if err != nil {
		return err
	}
	published, open := 0, 0
	for i := range nights {
		published += nights[i].Published()
		if nights[i].State != api.NightJudged {
			open++
		}
	}
	switch {
	case published > 0:
		return &failure{status: exitRegression, message: plural(published, "regression")}
	case open > 0:
		return &failure{status: exitIncomplete, message: plural(open, "night") + " not judged yet"}
	}
	return nil
}

// nights asks once, or again and again until the night is judged.
func (o *regressionsOptions) nights(ctx context.Context, a *app, q api.NightsQuery) ([]api.Night, error) {
	client := a.client()
	if o.wait {
		if _, err := a.awaitSweep(ctx, client, o.sweep); err != nil {
			return nil, err
		}
	}
	var lost time.Time
	for {
		list, err := client.Nights(ctx, q)
		var unreachable *api.UnreachableError
		switch {
		case err == nil && (!o.wait || list[0].State == api.NightJudged):
			return list, nil
		case err == nil:
			lost = time.Time{}
		case o.wait && (errors.As(err, &unreachable) || isUnavailable(err)):
			if lost.IsZero() {
				lost = a.now()
			}
			if a.now().Sub(lost) > outage {
				return nil, err
			}
		default:
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(a.poll):
		}
	}
}

func (o *regressionsOptions) print(a *app, nights []api.Night) {
	t := newTable("SWEEP>", "NIGHT", "NAME", "SITE", "SERIES", "STRATUM", "METRIC", "WORSE>", "P>", "VERDICT", "REASON")
	for i := range nights {
		o.addNight(t, &nights[i])
	}
	t.print(a, o.table)
	if o.table.parsable {
		return
	}
	for i := range nights {
		describeNight(a, &nights[i])
	}
}

func (o *regressionsOptions) addNight(t *table, n *api.Night) {
	if n.Report == nil {
		return
	}
	for _, c := range n.Report.Confirmations {
		verdict := cell{text: "not confirmed"}
		switch {
		case c.Published:
			verdict = cell{text: "regressed", style: red}
		case c.Confirmed:
			verdict = cell{text: "confirmed", style: yellow} // not kept by the false-discovery control
		case !o.all:
			continue
		}
		worse := "-"
		if c.Ratio != nil {
			worse = fmt.Sprintf("%+.1f %%", 100*(*c.Ratio-1))
		}
		t.add(n.SweepID, clock(&n.SubmittedAt), n.SweepName, n.Site, short(c.Series), c.Stratum, c.Metric, worse, number(c.ConfirmP), verdict, c.Reason)
	}
	if o.all {
		for _, u := range n.Report.NotRun {
			t.add(n.SweepID, clock(&n.SubmittedAt), n.SweepName, n.Site, short(u.Series), "", "", "-", "-", "not run again", u.Reason)
		}
	}
}

// describeNight says what a night's table does not: what was looked at, what
// shifted as a whole, and which nodes are off.
func describeNight(a *app, n *api.Night) {
	say := func(format string, args ...any) {
		a.print("sweep %d: %s\n", n.SweepID, printable(fmt.Sprintf(format, args...)))
	}
	if n.HardwareClass == "emulated" {
		say("emulated hardware")
	}
	r := n.Report
	if r == nil {
		say("%s", n.State)
		return
	}
	synthetic := 0
	for _, c := range r.Candidates {
		synthetic = max(synthetic, c.Synthetic)
	}
	say("%s: %d series screened, %s suspected, %d run again, %s", n.State, n.Series, plural(len(r.Candidates), "candidate"), len(r.Confirmations), plural(n.Published(), "regression"))
	if synthetic > 0 {
		say("the history has up to %s", plural(synthetic, "synthetic night"))
	}
	if n.Reason != "" {
		say("%s", n.Reason)
	}
	for _, alert := range r.Alerts {
		if len(alert.Series) > 1 {
			say("%s", alert.Text)
		}
	}
	for _, d := range r.Drifts {
		say("all of %s shifted: %s %+.1f %% over %d series", d.Stratum, d.Metric, 100*d.Shift, d.Series)
	}
	for _, e := range r.Nodes {
		say("node %s (%s)", e.Advice, e.Metric)
	}
	for _, ref := range r.References {
		if ref.Drift {
			say("the reference setting on %s is %.1f %% worse than in %d nights before: %s", ref.Node, 100*ref.Change, ref.Nights, ref.Metric)
		}
	}
	for _, u := range r.Environments {
		say("series %s: nothing pinned changed, but: %s", short(u.Series), strings.Join(u.Lines, "; "))
	}
	for _, why := range slices.Sorted(maps.Keys(r.Unscreened)) {
		say("%d series not screened: %s", r.Unscreened[why], why)
	}
}

func newReferenceCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reference", Short: "the setting that the nodes of a site are held against",
		Long: `A reference setting is run beside what got slower although nothing pinned
changed, so that a slow night is not taken for a slow setting; and where a
schedule has it, each node is held against its own history of it every night.`,
	}
	var flags tableFlags
	list := &cobra.Command{
		Use: "list", Short: "list the reference settings", Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.client().References(cmd.Context())
			if err != nil {
				return err
			}
			return a.printReferences(all, flags)
		},
	}
	addTableFlags(list.Flags(), &flags)
	set := &cobra.Command{
		Use: "set SITE SETTING_HASH", Short: "name a site's reference setting", Args: nArgs(2, 2, "SITE SETTING_HASH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			setting, err := a.client().Setting(cmd.Context(), args[1])
			if err != nil {
				return err
			}
			all, err := a.client().SetReference(cmd.Context(), api.ReferenceRequest{Site: args[0], SettingHash: setting.SettingHash})
			if err != nil {
				return err
			}
			return a.printReferences(all, flags)
		},
	}
	rm := &cobra.Command{
		Use: "rm SITE", Short: "forget a site's reference setting", Args: nArgs(1, 1, "SITE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := a.client().SetReference(cmd.Context(), api.ReferenceRequest{Site: args[0]})
			if err != nil {
				return err
			}
			return a.printReferences(all, flags)
		},
	}
	for _, c := range []*cobra.Command{set, list, rm} {
		exits(c, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
		cmd.AddCommand(c)
	}
	return cmd
}

func (a *app) printReferences(all []api.Reference, flags tableFlags) error {
	if a.json {
		return writeJSON(a.stdout, all)
	}
	t := newTable("SITE", "SETTING", "SERIES", "SET BY", "SET")
	for i := range all {
		t.add(all[i].Site, short(all[i].SettingHash), short(all[i].SeriesHash), all[i].SetBy, clock(&all[i].SetAt))
	}
	t.print(a, flags)
	return nil
}

type historyOptions struct {
	label           string
	nights, repeats int
	run, night      float64
	seed            uint64
	nodes           []string
}

// newDevHistoryCommand makes a past for rehearsals: nights that were never measured.
func newDevHistoryCommand(a *app) *cobra.Command {
	o := &historyOptions{}
	cmd := &cobra.Command{
		Use:   "history SWEEP --label TEXT",
		Short: "insert labelled nights that were never measured, for rehearsals",
		Long: `Draws nights around what the settings of a sweep measured, one a day before it,
and stores them with the label as synthetic history. Emulated hardware only.
Everything that is concluded from them says how many there were.`,
		Example: `sbench dev history 1 --label rehearsal --nights 20`,
		Args:    nArgs(1, 1, "SWEEP"),
		Hidden:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := positiveID("sweep", args[0])
			if err != nil {
				return err
			}
			return o.insert(a, cmd, id)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.label, "label", "", "`text` that says what the nights are for")
	f.IntVar(&o.nights, "nights", 20, "`nights` to insert")
	f.IntVar(&o.repeats, "repeats", 5, "`runs` of each night")
	f.Float64Var(&o.run, "run-cv", 0.01, "standard deviation of the logarithm from run to run")
	f.Float64Var(&o.night, "night-cv", 0.005, "standard deviation of the logarithm from night to night")
	f.Uint64Var(&o.seed, "seed", 1, "`seed` of what is drawn")
	f.StringSliceVar(&o.nodes, "nodes", []string{"node1"}, "the `nodes` that the runs were on, in turn")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func (o *historyOptions) insert(a *app, cmd *cobra.Command, id int64) error {
	if o.label == "" || o.nights < 1 || o.nights > 365 || o.repeats < 1 || o.repeats > 100 || !(o.run >= 0 && o.run < 1) || !(o.night >= 0 && o.night < 1) {
		return usagef("--label is needed, --nights is between 1 and 365, --repeats between 1 and 100, the deviations are at least 0 and below 1")
	}
	client := a.client()
	results, err := client.Results(cmd.Context(), id)
	if err != nil {
		return err
	}
	sweep, err := client.Summary(cmd.Context(), id)
	if err != nil {
		return err
	}
	req := api.SyntheticNights{SweepID: id, Label: o.label}
	for i, row := range results.Settings {
		random := rand.New(rand.NewPCG(o.seed, uint64(i))) //nolint:gosec // a rehearsal that is to be the same each time
		throughput, latency := row.Metrics["output_tokens_per_s"].Mean, row.Metrics["ttft_p95_mean_of_runs"].Mean
		for k := o.nights; k >= 1; k-- {
			n := api.SyntheticNight{SettingHash: row.SettingHash, Night: sweep.SubmittedAt.Add(-time.Duration(k) * 24 * time.Hour)}
			shift := o.night * random.NormFloat64()
			for r := range o.repeats {
				slower := math.Exp(shift + o.run*random.NormFloat64())
				n.Nodes = append(n.Nodes, o.nodes[r%len(o.nodes)])
				if throughput != nil {
					n.TokensPerS = append(n.TokensPerS, *throughput/slower)
				}
				if latency != nil {
					n.TTFTP95 = append(n.TTFTP95, *latency*slower)
				}
			}
			req.Nights = append(req.Nights, n)
		}
	}
	done, err := client.InsertSynthetic(cmd.Context(), req)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.stdout, done)
	}
	a.print("Inserted %s labelled %s\n", plural(done.Nights, "synthetic night"), printable(o.label))
	return nil
}
