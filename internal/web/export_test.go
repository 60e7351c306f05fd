package web

import (
	"maps"
	"slices"

	"sbench/internal/api"
	"sbench/internal/compare"
)

// Patterns lists every endpoint under /v1/.
func Patterns() []string {
	s := &server{}
	return slices.Concat(slices.Sorted(maps.Keys(s.routes())), slices.Sorted(maps.Keys(s.streams())))
}

// RooflineOf is what a comparison adds to a row from the model's shape.
func RooflineOf(row compare.Row, shape *api.ModelShape) api.ComparedSetting {
	var out api.ComparedSetting
	roofline(&out, row, shape)
	return out
}
