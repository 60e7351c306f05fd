package submit

import (
	"context"
	"time"

	"sbench/internal/slurm"
)

// limitsAge is how long the answers about limits are believed.
const limitsAge = 10 * time.Minute

// limits remembers what Slurm says about itself and about us.
type limits struct {
	asked   time.Time
	slurm   slurm.Settings
	user    slurm.Limits
	userErr error
	known   bool
}

func (l *limits) refresh(ctx context.Context, c cluster, user, account string, now time.Time) error {
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
	l.slurm, l.asked, l.known = settings, now, true
	if settings.Accounting {
		// Where this cannot be asked, a refusal will tell.
		l.user, l.userErr = c.Limits(ctx, user, account, "")
	}
	return nil
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
	if l.userErr == nil && l.user.Source != "" {
		site = min(site, l.user.MaxSubmit)
	}
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
