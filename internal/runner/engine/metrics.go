package engine

import (
	"bufio"
	"bytes"
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// maxMetrics bounds how many series of an engine's own metrics are kept.
const maxMetrics = 300

// ParseMetrics reads the text form of Prometheus: the samples of every metric,
// summed over its labels. Parts of histograms and summaries, values that are not
// finite and lines that are not understood are left out.
func ParseMetrics(text []byte) map[string]float64 {
	out := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest := line, ""
		if i := strings.IndexAny(line, "{ \t"); i >= 0 {
			name, rest = line[:i], line[i:]
		}
		if strings.HasPrefix(rest, "{") {
			end := strings.LastIndexByte(rest, '}')
			if end < 0 || strings.Contains(rest[:end], `quantile="`) {
				continue
			}
			rest = rest[end+1:]
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 || strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_created") || !metricName(name) {
			continue
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if _, known := out[name]; err != nil || math.IsNaN(v) || math.IsInf(v, 0) || !known && len(out) >= maxMetrics {
			continue
		}
		if sum := out[name] + v; !math.IsInf(sum, 0) {
			out[name] = sum
		}
	}
	return out
}

func metricName(s string) bool {
	return s != "" && len(s) <= 120 && strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune(alphanumeric+"_:", r) }) < 0
}

// Scrape asks the engine for its own metrics; nil where it has none.
func Scrape(ctx context.Context, base string) map[string]float64 {
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	status, text, err := get(ctx, client, base+"/metrics")
	if err != nil || status != http.StatusOK {
		return nil
	}
	found := ParseMetrics(text)
	if len(found) == 0 {
		return nil
	}
	return found
}
