package engine

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

//go:embed probe.py
var probeScript string

// pythonProbe asks the package metadata of the image; it imports no framework,
// which would take many seconds and touch the GPU.
func pythonProbe(distribution string) []string {
	return []string{"python3", "-c", probeScript, distribution}
}

// ParseReport reads what a Probe printed. Programs of an image may print before
// the report, which is the last line.
func ParseReport(out []byte) (Report, error) {
	var r Report
	if err := json.Unmarshal(lastLine(out), &r); err != nil {
		return Report{}, fmt.Errorf("report of the engine's image: %w", err)
	}
	return r, nil
}

func lastLine(b []byte) []byte {
	end := len(b)
	for end > 0 && (b[end-1] == '\n' || b[end-1] == '\r') {
		end--
	}
	start := end
	for start > 0 && b[start-1] != '\n' {
		start--
	}
	return b[start:end]
}

// jsonField reads a string field of a JSON object; "" where there is none.
func jsonField(name string) func([]byte) string {
	return func(answer []byte) string {
		var object map[string]json.RawMessage
		var value string
		if json.Unmarshal(answer, &object) != nil || json.Unmarshal(object[name], &value) != nil {
			return ""
		}
		return value
	}
}
