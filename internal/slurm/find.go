package slurm

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Presence is a three-valued answer about a job.
type Presence int

// The answers. Unknown is the zero value: not having been told is not knowing.
const (
	Unknown Presence = iota
	Known
	Gone
)

// String names the answer.
func (p Presence) String() string {
	switch p {
	case Known:
		return "known"
	case Gone:
		return "gone"
	case Unknown:
	}
	return "unknown"
}

// Found is a job that carries a name we looked for.
type Found struct {
	JobID  int64 // the array's own id
	Submit time.Time
	Ended  bool // all of it has ended
	// Queued is that the controller knows it. The accounting database keeps jobs that
	// a controller has lost, as they were: Begun is that any of it has started.
	Queued, Begun bool
}

// Find looks a job up by its unique name: in the queue, also by the token in its
// comment, because a site may rewrite names, and if it is not there in the
// accounting database. token "" looks at no comments. since bounds the search in
// the database; in the queue the name says enough, whatever the clocks say. Gone
// means that both answered and neither knows it, or that the controller does not and
// the cluster keeps no accounting; a job that the controller took moments ago may
// still be in neither.
func (c *Client) Find(ctx context.Context, name, token string, since time.Time) (Presence, []Found, error) {
	found, err := c.findQueued(ctx, name, token)
	if err != nil {
		return Unknown, nil, err
	}
	if len(found) > 0 {
		return Known, found, nil
	}
	a, err := c.Accounting(ctx, AccountingQuery{Names: []string{name}, Since: since})
	if errors.Is(err, ErrNoAccounting) {
		return Gone, nil, nil
	}
	if err != nil {
		return Unknown, nil, err
	}
	for _, r := range a.Records {
		// A refused submission leaves a record of a job that never was.
		if r.Name != name || r.Submit.Before(since) || refusedRecord(r) {
			continue
		}
		found = merge(found, Found{JobID: r.ID.Job, Submit: r.Submit, Ended: r.Ended(), Begun: !r.Start.IsZero()})
	}
	if len(found) > 0 {
		return Known, found, nil
	}
	if len(a.Skipped) > 0 {
		return Unknown, nil, a.Skipped[0].Err
	}
	return Gone, nil, nil
}

// findQueued looks in the queue, among the jobs of that name first.
func (c *Client) findQueued(ctx context.Context, name, token string) ([]Found, error) {
	looks := []func() (Queue, []Job, error){func() (Queue, []Job, error) {
		q, err := c.QueueByName(ctx, name)
		return q, q.Named(name), err
	}}
	if token != "" {
		looks = append(looks, func() (Queue, []Job, error) {
			q, err := c.Queue(ctx)
			return q, q.Named(token), err
		})
	}
	for i, look := range looks {
		q, jobs, err := look()
		if err != nil {
			return nil, err
		}
		var found []Found
		for _, j := range jobs {
			found = merge(found, Found{JobID: j.ArrayID, Submit: j.Submit, Ended: j.State.Phase() == PhaseEnded, Queued: true})
		}
		if len(found) > 0 {
			return found, nil
		}
		for _, s := range q.Skipped {
			// Of all jobs only ours matter; others do not keep us from our work.
			if i == 0 || strings.Contains(s.Row, token) {
				return nil, s.Err
			}
		}
	}
	return nil, nil
}

// refusedRecord: "Requested node configuration is not available" and its like
// leave a FAILED record that never started.
func refusedRecord(r Record) bool {
	return r.State == Failed && r.Start.IsZero() || r.State == Failed && r.Elapsed == 0 && len(r.Nodes) == 0
}

func merge(found []Found, f Found) []Found {
	for i := range found {
		if found[i].JobID == f.JobID {
			found[i].Ended = found[i].Ended && f.Ended
			found[i].Begun = found[i].Begun || f.Begun
			if f.Submit.Before(found[i].Submit) {
				found[i].Submit = f.Submit
			}
			return found
		}
	}
	return append(found, f)
}
