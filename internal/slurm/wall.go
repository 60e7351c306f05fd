package slurm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Partition is what the controller says of a partition.
type Partition struct {
	Name    string
	Default bool
	MaxTime time.Duration // 0 is no limit
	QOS     string        // the partition's own, "" for none
}

// Partitions asks scontrol for all partitions that our user may see.
func (c *Client) Partitions(ctx context.Context) ([]Partition, error) {
	out, err := c.run(ctx, call{program: "scontrol", args: []string{"--oneliner", "show", "partition"}, timeout: c.conf.Timeout})
	if err != nil {
		return nil, fmt.Errorf("read partitions: %w", err)
	}
	return parsePartitions(out.stdout)
}

func parsePartitions(text string) ([]Partition, error) {
	var list []Partition
	for line := range strings.Lines(text) {
		fields := map[string]string{}
		for _, f := range strings.Fields(line) {
			if key, value, ok := strings.Cut(f, "="); ok {
				fields[key] = value
			}
		}
		p := Partition{Name: fields["PartitionName"], Default: fields["Default"] == "YES"}
		if p.Name == "" {
			continue // "No partitions in the system"
		}
		if q := fields["QoS"]; q != "N/A" {
			p.QOS = q
		}
		var err error
		if p.MaxTime, err = parseLimit(fields["MaxTime"]); err != nil {
			return nil, fmt.Errorf("read partition %s: MaxTime: %w", p.Name, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// parseLimit reads how long something may take, [days-]hours:minutes:seconds; 0
// is no limit.
func parseLimit(text string) (time.Duration, error) {
	switch text {
	case "", "UNLIMITED", "INFINITE", "NONE", "N/A":
		return 0, nil
	}
	bad := fmt.Errorf("%q is not a time limit", text)
	days, clock, ok := strings.Cut(text, "-")
	if !ok {
		days, clock = "0", text
	}
	parts := strings.Split(clock, ":")
	if len(parts) != 3 {
		return 0, bad
	}
	var n [4]int64
	for i, p := range append([]string{days}, parts...) {
		v, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return 0, bad
		}
		n[i] = int64(v)
	}
	return time.Duration(((n[0]*24+n[1])*60+n[2])*60+n[3]) * time.Second, nil
}

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
