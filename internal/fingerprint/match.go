package fingerprint

import (
	"cmp"
	"strconv"
	"strings"
)

// Matches reports whether a realized value is the pinned one. A pin is an exact
// value; "550.*" is a prefix of whole components; ">=550.54 <560" is a range of
// versions, each bound with one of >= > <= <.
func Matches(pinned, realized string) bool {
	switch {
	case pinned == "" || realized == "":
		return false
	case strings.HasSuffix(pinned, ".*"):
		prefix := strings.TrimSuffix(pinned, "*")
		return len(realized) > len(prefix) && strings.HasPrefix(realized, prefix)
	case strings.ContainsAny(pinned[:1], "<>"):
		return inRange(strings.Fields(pinned), realized)
	}
	return pinned == realized
}

func inRange(bounds []string, realized string) bool {
	for _, b := range bounds {
		op := b[:len(b)-len(strings.TrimLeft(b, "<>="))]
		c, ok := compareVersions(realized, b[len(op):])
		if !ok {
			return false
		}
		switch op {
		case ">=":
			ok = c >= 0
		case ">":
			ok = c > 0
		case "<=":
			ok = c <= 0
		case "<":
			ok = c < 0
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// compareVersions compares dotted numbers, component by component, a missing one
// being 0. What is not a dotted number cannot be compared.
func compareVersions(a, b string) (int, bool) {
	x, okX := components(a)
	y, okY := components(b)
	if !okX || !okY {
		return 0, false
	}
	for i := range max(len(x), len(y)) {
		var l, r uint64
		if i < len(x) {
			l = x[i]
		}
		if i < len(y) {
			r = y[i]
		}
		if c := cmp.Compare(l, r); c != 0 {
			return c, true
		}
	}
	return 0, true
}

func components(s string) ([]uint64, bool) {
	var out []uint64
	for _, part := range strings.Split(s, ".") {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return nil, false
		}
		out = append(out, n)
	}
	return out, true
}
