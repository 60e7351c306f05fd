package metrics

import (
	"cmp"
	"fmt"
	"slices"

	"sbench/internal/result"
)

// load computes concurrency from the requests' times in the system, and Little's
// law from the same rows seen as arrivals.
func (c *computation) load() {
	type step struct {
		at    int64
		delta int
	}
	var steps []step
	var integral float64
	for i := range c.rows {
		r := &c.rows[i]
		from, to, ok := c.inSystem(r)
		if !ok {
			continue
		}
		integral += float64(to-from) / 1e9
		steps = append(steps, step{from, 1}, step{to, -1})
	}
	slices.SortFunc(steps, func(a, b step) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta))
	})
	now, most := 0, 0
	for _, s := range steps {
		now += s.delta
		most = max(most, now)
	}
	mean := integral / c.seconds
	c.set("concurrency_mean", mean, "")
	c.set("concurrency_max", float64(most), "")

	var residence float64
	n, left := 0, 0
	for _, r := range c.due {
		if r.TDispatch == nil {
			continue
		}
		n++
		if end := ended(r); end != nil {
			residence += float64(*end-r.TIntended) / 1e9
			left++
		}
	}
	c.setIf(left == n, "little_ratio", residence/c.seconds/mean,
		fmt.Sprintf("%d of %d requests were still in the system when the drain ended", n-left, n))
	if mean == 0 {
		c.null("little_ratio", "nothing was in the system")
	}
}

// inSystem is the part of the window during which the request was in the system,
// counted from when it was due.
func (c *computation) inSystem(r *result.Request) (from, to int64, ok bool) {
	if r.Phase == result.PhaseWarmup || r.TDispatch == nil || r.TIntended >= c.end {
		return 0, 0, false
	}
	from, to = max(r.TIntended, c.start), c.end
	if end := ended(r); end != nil {
		to = min(*end, c.end)
	}
	return from, to, to > from
}
