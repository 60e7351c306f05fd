package web

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/plan"
	"sbench/internal/site"
	"sbench/internal/slurm"
)

// Accounts asks Slurm about users and what they may do, and which nodes there are.
// The errors are those of slurm.Client.
type Accounts interface {
	Nodes(ctx context.Context) ([]slurm.Node, error)
	User(ctx context.Context, cluster, name string) (slurm.User, error)
	Wall(ctx context.Context, user, account, partitions, qos string) (slurm.Wall, error)
}

// walls remembers how long jobs may run, for the length of one request.
type walls map[[3]string]slurm.Wall

// bound lowers the longest time of a shape to what Slurm itself allows. Where it
// does not answer, nothing is refused for that: it is asked again before anything
// is submitted.
func (s *server) bound(ctx context.Context, st *site.Site, known walls, shape *plan.Shape) {
	accounts := s.Accounts[st.Name]
	if accounts == nil {
		return
	}
	key := [3]string{shape.Account, shape.Partition, shape.QOS}
	wall, ok := known[key]
	if !ok {
		var err error
		if wall, err = accounts.Wall(ctx, s.RunsAs, shape.Account, shape.Partition, shape.QOS); err != nil {
			s.Log.WarnContext(ctx, "ask Slurm how long jobs may run", "site", st.Name, "error", err)
			wall = slurm.Wall{}
		}
		known[key] = wall
	}
	shape.Bound(wall.Max, wall.Source)
}

// rolesLifetime is how long Slurm's word on who coordinates what is kept: every
// refusal would ask otherwise. Associations are asked for each time.
const rolesLifetime = time.Minute

// rolesCache keeps what Slurm says of users' roles. It is safe for concurrent use.
type rolesCache struct {
	mu    sync.Mutex
	known map[[2]string]cachedRoles
}

type cachedRoles struct {
	user  slurm.User
	until time.Time
}

// slurmUser is what Slurm's database says of a caller at a site; ok is false where
// it is not asked, keeps no accounting or knows no such user.
func (s *server) slurmUser(ctx context.Context, st *site.Site, name string) (slurm.User, bool, error) {
	accounts := s.Accounts[st.Name]
	if accounts == nil || !st.Roles.FromSlurm {
		return slurm.User{}, false, nil
	}
	key, now := [2]string{st.Name, name}, s.Now()
	s.roles.mu.Lock()
	c, ok := s.roles.known[key]
	s.roles.mu.Unlock()
	if ok && now.Before(c.until) {
		return c.user, len(c.user.Associations) > 0, nil
	}
	u, err := accounts.User(ctx, st.Cluster, name)
	if err != nil && !errors.Is(err, slurm.ErrNoUser) && !errors.Is(err, slurm.ErrNoAccounting) {
		return slurm.User{}, false, slurmSilent(st, err)
	}
	s.roles.mu.Lock()
	defer s.roles.mu.Unlock()
	if len(s.roles.known) >= maxBuckets {
		clear(s.roles.known)
	}
	s.roles.known[key] = cachedRoles{u, now.Add(rolesLifetime)}
	return u, err == nil, nil
}

func slurmSilent(st *site.Site, err error) error {
	return &api.Problem{
		Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot ask Slurm at site %s who may do what: %v", st.Name, err),
		Hint: "try again later; nothing was done",
	}
}

// operates reports whether the caller is an operator of a site: of all sites, by
// its site file, or by Slurm's own admin level. A token never is.
func (s *server) operates(ctx context.Context, who auth.Identity, st *site.Site) (bool, error) {
	switch {
	case who.Operator:
		return true, nil
	case who.Token != 0:
		return false, nil
	case slices.Contains(st.Roles.Operators, who.User), slices.Contains(st.Roles.Admins, who.User):
		return true, nil
	}
	u, ok, err := s.slurmUser(ctx, st, who.User)
	return ok && (u.AdminLevel == "Operator" || u.AdminLevel == "Administrator"), err
}

// administers reports whether the caller may set the rates and quotas of a site;
// "" is all sites.
func (s *server) administers(who auth.Identity, siteName string) bool {
	if who.Admin {
		return true
	}
	i := slices.IndexFunc(s.Sites, func(st *site.Site) bool { return st.Name == siteName })
	return i >= 0 && who.Token == 0 && slices.Contains(s.Sites[i].Roles.Admins, who.User)
}

// mayAct reports whether the caller may change, or see the private parts of, a
// sweep: its owner, the operators of its site, and, where Slurm is believed, the
// coordinators of its account.
func (s *server) mayAct(ctx context.Context, who auth.Identity, owner, siteName, account string) (bool, error) {
	if who.MayAct(owner) {
		return true, nil
	}
	i := slices.IndexFunc(s.Sites, func(st *site.Site) bool { return st.Name == siteName })
	if i < 0 || who.Token != 0 {
		return false, nil
	}
	if ok, err := s.operates(ctx, who, s.Sites[i]); ok || err != nil {
		return ok, err
	}
	u, ok, err := s.slurmUser(ctx, s.Sites[i], who.User)
	return ok && account != "" && slices.Contains(u.Coordinates, account), err
}

// onlyOperators refuses everybody who does not operate the site, with that message.
func (s *server) onlyOperators(ctx context.Context, who auth.Identity, st *site.Site, format string, args ...any) error {
	ok, err := s.operates(ctx, who, st)
	if err != nil || ok {
		return err
	}
	return refused(nil, format, args...)
}

// associated refuses what Slurm's own database does not let the caller do: spend
// for these accounts, in these partitions, with these QOS. Where the database
// does not answer, nothing is admitted.
func (s *server) associated(ctx context.Context, a *admission) error {
	accounts := s.Accounts[a.site.Name]
	if accounts == nil || !a.site.Roles.Associations {
		return nil
	}
	u, err := accounts.User(ctx, a.site.Cluster, a.who.User)
	switch {
	case errors.Is(err, slurm.ErrNoAccounting):
		return nil // Slurm refuses nobody
	case errors.Is(err, slurm.ErrNoUser):
		return refused(nil, "Slurm at site %s has no account for %s: ask its admins for one (sacctmgr)", a.site.Name, a.who.User)
	case err != nil:
		return slurmSilent(a.site, err)
	}
	if a.options.Account == "" {
		a.options.Account = u.DefaultAccount
	}
	var reasons []string
	for _, b := range a.plan.Batches {
		if why := u.May(a.options.Account, b.Partition, b.QOS); why != "" && !slices.Contains(reasons, why) {
			reasons = append(reasons, why)
		}
	}
	if len(reasons) > 0 {
		return refused(reasons, "Slurm at site %s would refuse this", a.site.Name)
	}
	return nil
}
