package slurm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// Wall is the longest that Slurm lets a job run; a job that asks for more is
// refused, or waits for ever.
type Wall struct {
	Max    time.Duration // 0 is no limit
	Source string        // whose limit it is, for people: "partition gpu", "QOS short"
}

// Wall asks scontrol and sacctmgr how long a job of a user may run in partitions,
// with an account and a QOS. partitions may be several, separated by commas: the
// one that allows the longest counts. "" is the default of each.
func (c *Client) Wall(ctx context.Context, user, account, partitions, qos string) (Wall, error) {
	list, err := c.Partitions(ctx)
	if err != nil {
		return Wall{}, err
	}
	l, err := c.Limits(ctx, user, account, qos)
	if err != nil && !errors.Is(err, ErrNoAccounting) {
		return Wall{}, err
	}
	var names []string
	for _, p := range chosen(list, partitions) {
		if err == nil && p.QOS != "" && !slices.Contains(names, p.QOS) {
			names = append(names, p.QOS)
		}
	}
	own, err := c.qos(ctx, names)
	if err != nil {
		return Wall{}, err
	}
	return wall(list, partitions, l, own), nil
}

// chosen are the partitions that a job names; the default one for "".
func chosen(list []Partition, names string) []Partition {
	return slices.DeleteFunc(slices.Clone(list), func(p Partition) bool {
		if names == "" {
			return !p.Default
		}
		return !slices.Contains(strings.Split(names, ","), p.Name)
	})
}

// wall is Slurm's rule: of the partition's QOS, the job's QOS and the association
// the first that has a limit counts (the job's QOS before the partition's where
// it says OverPartQOS), and the partition's own limit besides, unless the job's
// QOS says PartitionTimeLimit.
func wall(list []Partition, names string, l Limits, own map[string]qosLimits) Wall {
	var longest Wall
	for i, p := range chosen(list, names) {
		order := []Wall{
			{own[p.QOS].maxWall, "QOS " + p.QOS + " of partition " + p.Name},
			{l.qos.maxWall, "QOS " + l.qos.name},
			{l.maxWall, "association of account " + l.account},
		}
		if slices.Contains(l.qos.flags, "OverPartQOS") {
			order[0], order[1] = order[1], order[0]
		}
		var w Wall
		if first := slices.IndexFunc(order, func(w Wall) bool { return w.Max > 0 }); first >= 0 {
			w = order[first]
		}
		if t := p.MaxTime; t > 0 && (w.Max == 0 || t < w.Max) && !slices.Contains(l.qos.flags, "PartitionTimeLimit") {
			w = Wall{t, "partition " + p.Name}
		}
		if w.Max == 0 {
			return Wall{}
		}
		if i == 0 || w.Max > longest.Max {
			longest = w
		}
	}
	return longest
}
