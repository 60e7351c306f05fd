package submit

import (
	"context"
	"errors"
	"time"
)

// throttleWait is how long a job that took no limit is left alone.
const throttleWait = time.Minute

// throttle tells Slurm how many tasks of an array may run at once, where a user
// has changed it. It may tell it twice: what is not recorded is told again.
func (s *Service) throttle(ctx context.Context) error {
	wanted, err := s.Store.ThrottlesWanted(ctx, s.Site.Name)
	if err != nil {
		return err
	}
	var errs []error
	now := s.Now()
	for _, w := range wanted {
		if now.Before(s.slow[w.Token]) {
			continue
		}
		if err := s.Cluster.UpdateThrottle(ctx, w.JobID, w.Throttle); err != nil {
			// A job without a waiting task takes no limit, and needs none; whether it
			// is that, or Slurm does not answer, shows when the tracker ends its batch.
			s.slow[w.Token] = now.Add(throttleWait)
			errs = append(errs, err)
			continue
		}
		delete(s.slow, w.Token)
		s.Log.InfoContext(ctx, "limit of tasks at once changed", "token", w.Token, "job", w.JobID, "most", w.Throttle)
		errs = append(errs, s.Store.Throttled(ctx, w))
	}
	return errors.Join(errs...)
}
