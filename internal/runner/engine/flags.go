package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// vllmConfig is the line in which vLLM's core says what its options resolved to.
var vllmConfig = regexp.MustCompile(`Initializing an? (?:V\d+ )?LLM engine \(v[^)]*\) with config: (.*)`)

// resolvedVLLM reads vLLM's resolved configuration from its start-up log: no route
// of the server tells it. With several data-parallel cores all say the same.
func resolvedVLLM(log string) map[string]string {
	for line := range strings.Lines(log) {
		if m := vllmConfig.FindStringSubmatch(strings.TrimRight(control.ReplaceAllString(line, ""), "\r\n")); m != nil {
			return pairs(m[1])
		}
	}
	return nil
}

// pairs reads name=value, name=value, …, whose values may be quoted, and may hold
// commas within brackets and quotes. A long value stands as its digest.
func pairs(text string) map[string]string {
	const most, longest = 400, 300
	out := map[string]string{}
	for _, part := range splitOutside(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || name == "" || len(name) > longest || len(out) == most {
			continue
		}
		if n := len(value); n > 1 && (value[0] == '\'' || value[0] == '"') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		if len(value) > longest {
			sum := sha256.Sum256([]byte(value))
			value = "sha256:" + hex.EncodeToString(sum[:])
		}
		out[name] = strings.ToValidUTF8(value, "\uFFFD")
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// splitOutside splits at commas outside of brackets and quotes.
func splitOutside(text string) []string {
	var parts []string
	var quote byte
	depth, start := 0, 0
	for i := range len(text) {
		c := text[i]
		switch {
		case quote != 0:
			if c == quote && text[i-1] != '\\' {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '(' || c == '[' || c == '{':
			depth++
		case c == ')' || c == ']' || c == '}':
			depth--
		case c == ',' && depth <= 0:
			parts, start = append(parts, text[start:i]), i+1
		}
	}
	return append(parts, text[start:])
}
