package web

import (
	"maps"
	"slices"
)

// Patterns lists every endpoint under /v1/.
func Patterns() []string {
	s := &server{}
	return slices.Concat(slices.Sorted(maps.Keys(s.routes())), slices.Sorted(maps.Keys(s.streams())))
}
