package web

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sbench/internal/api"
	"sbench/internal/plan"
	"sbench/internal/setting"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

// spreadOver is over how many nodes the runs again of a setting are spread.
const spreadOver = 5

// nodes knows where runs can be made at a site, for the length of one request.
type nodes struct {
	hosts []plan.Host
	avoid map[string][]string // by setting; "" has those that all avoid
	given []string            // that the submission excludes
	plan  plan.Options
}

// errNotAsked says that no node of the site can be asked for by its name.
var errNotAsked = errors.New("this daemon does not ask the site's Slurm for its nodes")

// usableNodes asks Slurm for the nodes of a submission's site that may get jobs.
func (s *server) usableNodes(ctx context.Context, a *admission) (*nodes, error) {
	accounts := s.Accounts[a.site.Name]
	if accounts == nil {
		return nil, errNotAsked
	}
	all, err := accounts.Nodes(ctx)
	if err != nil {
		return nil, slurmSilent(a.site, err)
	}
	n := &nodes{plan: planOptions(a.options)}
	for _, h := range all {
		if h.Usable() {
			n.hosts = append(n.hosts, plan.Host{Name: h.Name, Idle: h.State == "IDLE", Partitions: h.Partitions, Features: h.Features, GRES: h.GRES})
		}
	}
	if list := a.options.ExcludeNodes; list != "" {
		if n.given, err = slurm.ExpandHosts(list); err != nil {
			return nil, invalid("--exclude: %v", err)
		}
	}
	n.avoid, err = s.Store.NodesToAvoid(ctx, a.site.Name, s.Now().Add(-store.DriftAge))
	return n, err
}

// of are the nodes that a run of a setting can be on. The error is for people.
func (n *nodes) of(a *admission, hash string, set *setting.Setting) ([]string, error) {
	shape, err := plan.ShapeOf(a.site, set, n.plan, nil)
	if err != nil {
		return nil, err
	}
	return shape.Hosts(n.hosts, slices.Concat(n.avoid[hash], n.avoid[""], n.given))
}

// spread puts the runs again of those settings for which that is asked on different
// nodes, as many as there are, and says why where it cannot: one node alone cannot
// tell itself from what runs on it.
func (s *server) spread(ctx context.Context, a *admission, settings []store.NewSetting, list []store.Again) (map[string]store.Spread, error) {
	wanted := map[string]bool{}
	for _, one := range list {
		if one.Spread {
			wanted[one.SettingHash] = true
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	known, unknown := s.usableNodes(ctx, a)
	if unknown != nil && !errors.Is(unknown, errNotAsked) {
		return nil, unknown
	}
	out := map[string]store.Spread{}
	for i := range settings {
		n := &settings[i]
		if !wanted[n.Hash] {
			continue
		}
		names, err := []string(nil), unknown
		if err == nil {
			names, err = known.of(a, n.Hash, &n.Setting)
		}
		switch {
		case err != nil:
		case len(names) == 0:
			err = errors.New("no node for it is usable now")
		case len(names) == 1:
			err = fmt.Errorf("%s is the only usable node for it", names[0])
		}
		if err != nil {
			out[n.Hash] = store.Spread{Nodes: []string{}, Reason: err.Error()}
			continue
		}
		n.Nodes = names[:min(len(names), spreadOver, n.Repeats)]
		out[n.Hash] = store.Spread{Nodes: n.Nodes}
	}
	return out, nil
}

// eachNode makes every run of a submission once for each node that can take it.
func (s *server) eachNode(ctx context.Context, a *admission) error {
	if !a.options.EachNode {
		return nil
	}
	known, err := s.usableNodes(ctx, a)
	if errors.Is(err, errNotAsked) {
		return refused(nil, "--each-node: %v", err)
	}
	if err != nil {
		return err
	}
	a.repeats, a.nodes = map[string]int{}, map[string][]string{}
	a.plan.Runs = 0
	var reasons []string
	for i := range a.sweep.Settings {
		x := &a.sweep.Settings[i]
		names, err := known.of(a, x.Hash, &x.Setting)
		if err == nil && len(names) == 0 {
			err = errors.New("no node for it is usable now")
		}
		if err != nil {
			if text := err.Error(); !slices.Contains(reasons, text) {
				reasons = append(reasons, text)
			}
			continue
		}
		slices.Sort(names) // each node gets the same requests every night
		a.nodes[x.Hash], a.repeats[x.Hash] = names, a.sweep.Repeats.First()*len(names)
		a.plan.Runs += a.repeats[x.Hash]
	}
	if len(reasons) > 0 {
		return refused(reasons, "--each-node cannot ask for single nodes")
	}
	return nil
}

// checkEachNode refuses what --each-node does not go with.
func checkEachNode(o *api.Options, adaptive bool) error {
	switch {
	case !o.EachNode:
	case o.NodeList != "":
		return invalid("--each-node and --nodelist both say where runs are made")
	case o.Only != nil:
		return invalid("--each-node and one single run contradict each other")
	case adaptive:
		return invalid("--each-node needs a fixed number of repeats: runs that are added would be on any node")
	}
	return nil
}
