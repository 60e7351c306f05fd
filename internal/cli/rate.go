package cli

import (
	"math"
	"math/big"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/cost"
)

func newRateCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rate COMMAND",
		Short: "set and list what a GPU-hour costs",
		Long: `A rate holds from its time on, for a site and a kind of hardware or for all of
them; the most specific one counts, and of those the latest. Rates are never
changed: a new one takes the old one's place, and what was spent before is priced
as it was.`,
	}
	cmd.AddCommand(newRateSetCommand(a), newRateListCommand(a))
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newRateSetCommand(a *app) *cobra.Command {
	var req api.RateRequest
	var from string
	cmd := &cobra.Command{
		Use: "set USD", Short: "set the price of a GPU-hour in US dollars", Args: nArgs(1, 1, "USD"),
		Long:    `Sets what a GPU-hour costs, with up to six decimals. Admins only.`,
		Example: "sbench rate set 2.49 --site helios --hardware h100-sxm --from 2026-04-01",
		RunE: func(cmd *cobra.Command, args []string) error {
			micros, err := parseUSD(args[0])
			if err != nil {
				return err
			}
			req.MicrosPerGPUHour = micros
			if from != "" {
				t, err := pastTime(from, a.now())
				if err != nil {
					return usagef("--from: %v", err)
				}
				req.ValidFrom = &t
			}
			r, err := a.client().SetRate(cmd.Context(), req)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, r)
			}
			a.message("rate %d: %s USD per GPU-hour from %s", r.ID, number(&r.USDPerGPUHour), clock(&r.ValidFrom))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Site, "site", "", "only at this `site`")
	f.StringVar(&req.Hardware, "hardware", "", "only for this `hardware` id")
	f.StringVar(&from, "from", "", "from this `time` on (default now)")
	f.StringVar(&req.Comment, "comment", "", "a `text` beside it")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

// parseUSD reads dollars with at most six decimals, exactly.
func parseUSD(s string) (int64, error) {
	v, ok := new(big.Rat).SetString(s)
	if !ok || strings.ContainsAny(s, "/eExXpP_") {
		return 0, usagef("%q is not an amount of dollars such as 2.49", s)
	}
	v.Mul(v, big.NewRat(1_000_000, 1))
	switch {
	case v.Sign() < 0:
		return 0, usagef("a rate of %s dollars is negative", s)
	case !v.IsInt():
		return 0, usagef("%s has more than six decimals", s)
	case v.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0 || v.Num().Int64() > int64(cost.MaxRate):
		return 0, usagef("a rate is at most %.0f dollars per GPU-hour", cost.MaxRate.USD())
	}
	return v.Num().Int64(), nil
}

func newRateListCommand(a *app) *cobra.Command {
	var t tableFlags
	cmd := &cobra.Command{
		Use: "list", Short: "list all rates, past and future ones too", Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			rates, err := a.client().Rates(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, rates)
			}
			tab := newTable("ID>", "SITE", "HARDWARE", "USD/GPU_HOUR>", "FROM", "CURRENT", "BY", "COMMENT")
			for _, r := range rates {
				tab.add(r.ID, all(r.Site), all(r.Hardware), number(&r.USDPerGPUHour), clock(&r.ValidFrom), yesNo(r.Current), r.SetBy, dash(r.Comment))
			}
			tab.print(a, t)
			return nil
		},
	}
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

// all shows what "" means in a rate or a quota.
func all(s string) string {
	if s == "" {
		return "(all)"
	}
	return s
}
