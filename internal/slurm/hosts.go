package slurm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHosts bounds the expansion of a node list.
const maxHosts = 1 << 17

// ExpandHosts turns a node list (gpu[1-2,05],l4-1, rack[1-2]n[1-4]) into names in
// the given order.
func ExpandHosts(list string) ([]string, error) {
	var all []string
	for _, expr := range splitHosts(list) {
		names, err := expandHost(expr)
		if err != nil {
			return nil, fmt.Errorf("node list %q: %w", list, err)
		}
		if len(all)+len(names) > maxHosts {
			return nil, errors.New("node list is too long")
		}
		all = append(all, names...)
	}
	return all, nil
}

// splitHosts cuts at the commas that are not inside brackets.
func splitHosts(list string) []string {
	var parts []string
	depth, start := 0, 0
	for i, r := range list {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, list[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, list[start:])
}

func expandHost(expr string) ([]string, error) {
	names := []string{""}
	for expr != "" {
		open := strings.IndexByte(expr, '[')
		literal := expr
		if open >= 0 {
			literal = expr[:open]
		}
		if strings.ContainsAny(literal, "]\x00 \t\n/") {
			return nil, fmt.Errorf("%q is not a node name", literal)
		}
		var choices []string
		if open >= 0 {
			end := strings.IndexByte(expr[open:], ']')
			if end < 0 {
				return nil, errors.New("unclosed bracket")
			}
			var err error
			if choices, err = expandNumbers(expr[open+1 : open+end]); err != nil {
				return nil, err
			}
			expr = expr[open+end+1:]
		} else {
			choices, expr = []string{""}, ""
		}
		if len(names)*len(choices) > maxHosts {
			return nil, errors.New("too many nodes")
		}
		next := make([]string, 0, len(names)*len(choices))
		for _, n := range names {
			for _, c := range choices {
				next = append(next, n+literal+c)
			}
		}
		names = next
	}
	if len(names) == 1 && names[0] == "" {
		return nil, errors.New("empty node name")
	}
	return names, nil
}

func expandNumbers(list string) ([]string, error) {
	var all []string
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 32)
		b, err2 := strconv.ParseUint(last, 10, 32)
		if err1 != nil || err2 != nil || b < a || len(all)+int(b-a) >= maxHosts {
			return nil, fmt.Errorf("bad range %q", part)
		}
		for i := a; i <= b; i++ {
			all = append(all, fmt.Sprintf("%0*d", len(first), i))
		}
	}
	return all, nil
}
