package jobscript

import (
	"maps"
	"slices"

	"sbench/internal/plan"
	"sbench/internal/site"
)

// Of is the job of a planned batch at a site, as far as these two say: the
// caller adds name, token, comment, folder, digest and programs.
func Of(s *site.Site, b plan.Batch) Job {
	shape := b.Shape
	j := Job{
		Tasks: len(b.Tasks), Throttle: shape.Throttle,
		Partition: shape.Partition, Account: shape.Account, QOS: shape.QOS, WCKey: shape.WCKey, Reservation: shape.Reservation,
		Nice: shape.Nice, Dependency: shape.Dependency, GRES: shape.GRES, StepGRES: shape.StepGRES, Nodes: shape.Nodes, CPUs: shape.CPUs,
		Memory: shape.Memory, Exclusive: shape.Exclusive, OwnUser: shape.OwnUser, Constraint: shape.Constraint, Switches: shape.Switches,
		NodeList: shape.NodeList, Exclude: shape.Exclude,
		TimeLimit: b.TimeLimit, Grace: s.Jobs.Signal, Requeue: s.Jobs.Requeue,
	}
	for _, key := range slices.Sorted(maps.Keys(s.Jobs.Options)) {
		j.Options = append(j.Options, Option{Name: key, Value: s.Jobs.Options[key]})
	}
	return j
}
