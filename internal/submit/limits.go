package submit

import (
	"context"
	"time"

	"sbench/internal/plan"
	"sbench/internal/slurm"
)

// limitsAge is how long the answers about limits are believed.
const limitsAge = 10 * time.Minute

// limits remembers what Slurm says about itself and about us.
type limits struct {
	asked time.Time
	slurm slurm.Settings
	known bool
	// user has the submit limits of our user by account and QOS; those that could
	// not be asked are not in it: a refusal will tell.
	user map[owner]slurm.Limits
	// shares of accounts in Slurm's fair-share tree; sharesAsked is when they were
	// asked for, also in vain.
	shares      map[string]float64
	sharesAsked time.Time
	// walls say how long a job may run; what could not be asked is no limit.
	walls map[place]slurm.Wall
}

// place is where and as whom a job runs.
type place struct{ account, partitions, qos string }

// owner is what a submit limit belongs to.
type owner struct{ account, qos string }

func (l *limits) refresh(ctx context.Context, c cluster, now time.Time) error {
	if l.known && now.Sub(l.asked) < limitsAge {
		return nil
	}
	settings, err := c.Settings(ctx)
	if err != nil {
		if l.known {
			return nil // old answers are better than none
		}
		return err
	}
	l.slurm, l.asked, l.known, l.user, l.walls = settings, now, true, nil, nil
	return nil
}

// of is how many jobs Slurm takes of the user with an account and QOS; false
// where there is no limit, or none is known.
func (l *limits) of(ctx context.Context, c cluster, user string, o owner) (int, bool) {
	if !l.slurm.Accounting {
		return 0, false
	}
	got, asked := l.user[o]
	if !asked {
		var err error
		if got, err = c.Limits(ctx, user, o.account, o.qos); err != nil {
			got = slurm.Limits{}
		}
		if l.user == nil {
			l.user = map[owner]slurm.Limits{}
		}
		l.user[o] = got // also what could not be asked: not again on every turn
	}
	return got.MaxSubmit, got.Source != ""
}

// sharesOf are the accounts' shares: the last ones known where the error is not nil.
func (l *limits) sharesOf(ctx context.Context, c cluster) (map[string]float64, error) {
	if l.sharesAsked.Equal(l.asked) {
		return l.shares, nil // as old as the other answers
	}
	shares, err := c.Shares(ctx)
	if ctx.Err() == nil {
		l.sharesAsked = l.asked
	}
	if err == nil {
		l.shares = shares
	}
	return l.shares, err
}

// bound lowers the longest time of a shape to what Slurm itself allows.
func (l *limits) bound(ctx context.Context, c cluster, user string, shape *plan.Shape) {
	at := place{shape.Account, shape.Partition, shape.QOS}
	wall, asked := l.walls[at]
	if !asked {
		var err error
		if wall, err = c.Wall(ctx, user, at.account, at.partitions, at.qos); err != nil {
			wall = slurm.Wall{}
		}
		if l.walls == nil {
			l.walls = map[place]slurm.Wall{}
		}
		l.walls[at] = wall
	}
	shape.Bound(wall.Max, wall.Source)
}

func (l *limits) settings(ctx context.Context, c cluster, now time.Time) (slurm.Settings, error) {
	if l.known {
		return l.slurm, nil
	}
	settings, err := c.Settings(ctx)
	if err == nil {
		l.slurm, l.asked, l.known = settings, now, true
	}
	return settings, err
}

// queue is how many tasks of ours may be in the queue, at most site.
func (l *limits) queue(site int) int {
	if l.slurm.MaxJobCount > 0 {
		// Ended jobs count until MinJobAge has passed, and others have jobs too.
		site = min(site, max(1, l.slurm.MaxJobCount/2))
	}
	return site
}

// array is how many tasks one array may have, at most most.
func (l *limits) array(most int) int {
	for _, n := range []int{l.slurm.MaxArraySize, l.slurm.MaxArrayTasks} {
		if n > 0 {
			most = min(most, n)
		}
	}
	return max(most, 1)
}
