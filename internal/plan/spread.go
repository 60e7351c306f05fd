package plan

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Host is a node that may get jobs.
type Host struct {
	Name       string
	Idle       bool
	Partitions []string
	Features   []string
	GRES       map[string]int // by type, as gpu:h100
}

// Pin asks for one node, unless that is to be avoided or nodes are named already:
// the run is then made wherever it can be. "" asks for nothing.
func (s *Shape) Pin(node string, avoid []string) {
	if s.NodeList == "" && !slices.Contains(avoid, node) {
		s.NodeList = node
	}
}

var plainFeatures = regexp.MustCompile(`^[A-Za-z0-9_.:=-]+(&[A-Za-z0-9_.:=-]+)*$`)

// Hosts are the nodes that an allocation of the shape can be on, but for those that
// are to be avoided: idle ones first, then by name. The error says, for people, why
// single nodes cannot be asked for.
func (s *Shape) Hosts(all []Host, avoid []string) ([]string, error) {
	switch {
	case s.Nodes > 1:
		return nil, fmt.Errorf("each run is on %d nodes", s.Nodes)
	case s.NodeList != "":
		return nil, fmt.Errorf("the submission names its nodes: %s", s.NodeList)
	case s.Reservation != "":
		return nil, fmt.Errorf("reservation %s says which nodes there are", s.Reservation)
	case s.Constraint != "" && !plainFeatures.MatchString(s.Constraint):
		return nil, fmt.Errorf("constraint %s is no plain list of features", s.Constraint)
	}
	var fit []Host
	for _, h := range all {
		if !slices.Contains(avoid, h.Name) && s.fits(h) {
			fit = append(fit, h)
		}
	}
	slices.SortFunc(fit, func(a, b Host) int {
		if a.Idle != b.Idle {
			if a.Idle {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	names := make([]string, len(fit))
	for i, h := range fit {
		names[i] = h.Name
	}
	return names, nil
}

func (s *Shape) fits(h Host) bool {
	if s.Partition != "" && !slices.ContainsFunc(strings.Split(s.Partition, ","), func(p string) bool { return slices.Contains(h.Partitions, p) }) {
		return false
	}
	if s.Constraint != "" {
		for feature := range strings.SplitSeq(s.Constraint, "&") {
			if !slices.Contains(h.Features, feature) {
				return false
			}
		}
	}
	if s.GRES == "" {
		return true
	}
	i := strings.LastIndexByte(s.GRES, ':')
	kind, number := s.GRES[:i], s.GRES[i+1:]
	n, err := strconv.Atoi(number)
	have := h.GRES[kind]
	for name, k := range h.GRES {
		if strings.HasPrefix(name, kind+":") { // asked for without a type
			have += k
		}
	}
	return err == nil && have >= n
}
