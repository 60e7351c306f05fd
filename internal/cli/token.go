package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/unit"
)

func newTokenCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token COMMAND",
		Short: "create and revoke tokens for programs",
		Long: `A token lets a program, such as a CI job, call the daemon over TLS as its user:
for some things, for some time. Only its hash is stored. No token acts as an
operator or an admin.`,
	}
	cmd.AddCommand(newTokenCreateCommand(a), newTokenListCommand(a), newTokenRevokeCommand(a))
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newTokenCreateCommand(a *app) *cobra.Command {
	var req api.TokenRequest
	var life string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "create a token and print it, once", Args: nArgs(1, 1, "NAME"),
		Long: `Prints the token on standard output; it is not shown again. Write it into a file
that only its user may read, and name that file in SBENCH_TOKEN_FILE. The scopes
are read (look at what the user may look at), submit (submit sweeps) and act
(cancel, hold, release, requeue).`,
		Example: "(umask 077; sbench token create nightly-ci --scope read,submit --expires 90d --account ml > ~/.sbench-token)",
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := unit.Duration(life)
			if err != nil {
				return usagef("--expires: %v", err)
			}
			req.Name, req.LifetimeS = args[0], int64(d/time.Second)
			t, err := a.client().CreateToken(cmd.Context(), req)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, t)
			}
			a.print("%s\n", t.Text)
			a.message("token %d of %s, good for %s until %s; it is not shown again", t.ID, t.User, strings.Join(t.Scopes, ", "), clock(&t.ExpiresAt))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&req.Scopes, "scope", []string{"read"}, "what it is good for: `scopes` of read, submit, act")
	f.StringVar(&life, "expires", "30d", "how long it lives, at most 366d")
	f.StringVarP(&req.Account, "account", "A", "", "the only `account` that it may spend for")
	f.StringVar(&req.User, "user", "", "whose rights it has (admins; default your own)")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newTokenListCommand(a *app) *cobra.Command {
	var t tableFlags
	var everybody bool
	cmd := &cobra.Command{
		Use: "list", Short: "list your tokens, revoked and expired ones too", Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client().Tokens(cmd.Context(), everybody)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, list)
			}
			tab := newTable("ID>", "NAME", "USER", "SCOPES", "ACCOUNT", "STATE", "EXPIRES", "LAST_USED")
			for _, k := range list {
				tab.add(k.ID, k.Name, k.User, strings.Join(k.Scopes, ","), all(k.Account), tokenState(k, a.now()), clock(&k.ExpiresAt), clock(k.LastUsedAt))
			}
			tab.print(a, t)
			return nil
		},
	}
	cmd.Flags().BoolVar(&everybody, "all", false, "everybody's (admins)")
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func tokenState(t api.Token, now time.Time) cell {
	switch {
	case t.RevokedAt != nil:
		return cell{"revoked", red}
	case !now.Before(t.ExpiresAt):
		return cell{"expired", red}
	}
	return cell{"good", green}
}

func newTokenRevokeCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "end a token at once", Args: nArgs(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || id <= 0 {
				return usagef("%q is not the number of a token: see sbench token list", args[0])
			}
			t, err := a.client().RevokeToken(cmd.Context(), id)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, t)
			}
			a.message("token %d (%s) is revoked", t.ID, t.Name)
			return nil
		},
	}
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newAuditCommand(a *app) *cobra.Command {
	var t tableFlags
	var q api.AuditQuery
	var since, until string
	cmd := &cobra.Command{
		Use: "audit", Short: "read the audit log", Args: nArgs(0, 0, ""),
		Long: `Lists what was asked of the daemon that could change something, who asked for it
and what became of it; refused credentials; and operators' looks into other
people's logs. Newest first. The log is append-only: the database refuses to
change it. Admins see everything, others their own rows.`,
		Example: "sbench audit --since now-1day --text tokens\nsbench audit -u ada --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := a.now()
			for _, f := range []struct {
				flag, text string
				into       *time.Time
			}{{"since", since, &q.Since}, {"until", until, &q.Until}} {
				if f.text == "" {
					continue
				}
				at, err := pastTime(f.text, now)
				if err != nil {
					return usagef("--%s: %v", f.flag, err)
				}
				*f.into = at
			}
			rows, err := a.client().Audit(cmd.Context(), q)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, rows)
			}
			tab := newTable("ID>", "AT", "USER", "VIA", "FROM", "ACTION", "OBJECT", "OUTCOME", "DETAIL")
			for _, r := range rows {
				tab.add(r.ID, clock(&r.At), dash(r.User), dash(r.Via), dash(r.Remote), r.Action, r.Object, outcomeCell(r.Outcome), string(r.Detail))
			}
			tab.print(a, t)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&since, "since", "S", "", "from this `time` on")
	f.StringVarP(&until, "until", "E", "", "before this `time`")
	f.StringVarP(&q.User, "user", "u", "", "only what this `user` asked")
	f.StringVar(&q.Text, "text", "", "only with this `text` in the action or object")
	f.BoolVar(&q.Asked, "asked", false, "also the rows that are written before anything is done")
	f.IntVar(&q.Limit, "limit", 1000, "at most so many `rows`")
	addTableFlags(f, &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func outcomeCell(s string) cell {
	switch s {
	case "done":
		return cell{s, green}
	case "refused", "failed":
		return cell{s, red}
	}
	return cell{text: s}
}
