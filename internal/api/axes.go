package api

import "sbench/internal/setting"

// Axes returns the axes that apply to a setting by their dotted keys, as every
// answer shows them: durations in seconds, rates in requests/s, and one entry
// per engine option (engine.args.max-num-seqs).
func Axes(s *setting.Setting) map[string]any {
	axes := s.FlatValues()
	for k, v := range axes {
		if v == nil {
			delete(axes, k)
		}
	}
	return axes
}
