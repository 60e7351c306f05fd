package workload

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tracePoint is one request of a trace.
type tracePoint struct {
	at float64 // seconds from the first one, scaled
	size
}

// The names under which public traces carry a time in seconds, one in
// milliseconds, and the token counts.
func secondsKeys() []string { return []string{"t", "t_s", "time_s", "arrival_time_s", "arrived_at"} }
func millisKeys() []string  { return []string{"timestamp_ms", "t_ms", "timestamp"} }
func inputKeys() []string {
	return []string{"input_tokens", "input_length", "contexttokens", "request tokens", "prompt_tokens"}
}

func outputKeys() []string {
	return []string{"output_tokens", "output_length", "generatedtokens", "response tokens", "completion_tokens"}
}

// parseTrace reads a trace: JSONL (one object a line) or CSV with a header. A
// time is in seconds (key t, t_s, arrived_at), in milliseconds (timestamp,
// timestamp_ms: Mooncake's; beside BurstGPT's "Request tokens" it is in seconds) or
// a date and time (Azure's TIMESTAMP). Times are
// taken relative to the earliest and divided by scale.
func parseTrace(data []byte, scale float64) ([]tracePoint, error) {
	if !(scale > 0) || math.IsInf(scale, 1) {
		return nil, fmt.Errorf("trace_scale %v: want a positive number", scale)
	}
	var points []tracePoint
	err := eachRow(data, func(row map[string]any) error {
		at, err := rowTime(row)
		if err != nil {
			return err
		}
		points = append(points, tracePoint{at, rowSize(row)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	if len(points) == 0 {
		return nil, errors.New("trace: no requests")
	}
	slices.SortStableFunc(points, func(a, b tracePoint) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	zero := points[0].at
	for i := range points {
		points[i].at = (points[i].at - zero) / scale
	}
	return points, nil
}

// eachRow calls f with each row's values under lower-case keys; CSV values are
// strings.
func eachRow(data []byte, f func(map[string]any) error) error {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		for n := 1; len(data) > 0; n++ {
			line, rest, _ := bytes.Cut(data, []byte("\n"))
			data = rest
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			var row map[string]any
			if err := json.Unmarshal(line, &row); err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			if err := f(lowerKeys(row)); err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
		}
		return nil
	}
	r := csv.NewReader(bytes.NewReader(data))
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		row := make(map[string]any, len(header))
		for i, key := range header {
			row[strings.ToLower(strings.TrimSpace(key))] = strings.TrimSpace(record[i])
		}
		if err := f(row); err != nil {
			line, _ := r.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

func lowerKeys(row map[string]any) map[string]any {
	lower := make(map[string]any, len(row))
	for k, v := range row {
		lower[strings.ToLower(k)] = v
	}
	return lower
}

func rowTime(row map[string]any) (float64, error) {
	for _, key := range secondsKeys() {
		if v, ok := row[key]; ok {
			return finite(key, v)
		}
	}
	for _, key := range millisKeys() {
		v, ok := row[key]
		if !ok {
			continue
		}
		if s, isText := v.(string); isText && key == "timestamp" {
			for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999"} {
				if at, err := time.Parse(layout, s); err == nil {
					return float64(at.Unix()) + float64(at.Nanosecond())/1e9, nil
				}
			}
		}
		at, err := finite(key, v)
		if _, seconds := row["request tokens"]; seconds && key == "timestamp" {
			return at, err // BurstGPT's are in seconds
		}
		return at / 1000, err
	}
	return 0, fmt.Errorf("no time: want one of %s", strings.Join(slices.Concat(secondsKeys(), millisKeys()), ", "))
}

func finite(key string, v any) (float64, error) {
	x, ok := v.(float64)
	if s, isText := v.(string); isText {
		parsed, err := strconv.ParseFloat(s, 64)
		x, ok = parsed, err == nil
	}
	if !ok || math.IsNaN(x) || math.IsInf(x, 0) || math.Abs(x) > 1e15 {
		return 0, fmt.Errorf("%s: %v is not a number", key, v)
	}
	return x, nil
}

// rowSize is the row's token counts; 0 where it gives none.
func rowSize(row map[string]any) size {
	tokens := func(keys []string) int32 {
		for _, key := range keys {
			if v, ok := row[key]; ok {
				if x, err := finite(key, v); err == nil && x >= 1 && x <= maxTokens {
					return int32(x)
				}
			}
		}
		return 0
	}
	return size{tokens(inputKeys()), tokens(outputKeys())}
}

// prompt is one row of a prompt file.
type prompt struct {
	text string
	size
}

// parsePrompts reads a prompt file: JSONL with a text under prompt, text,
// content or question, and optionally input_tokens and output_tokens.
func parsePrompts(data []byte) ([]prompt, error) {
	var prompts []prompt
	err := eachRow(data, func(row map[string]any) error {
		for _, key := range []string{"prompt", "text", "content", "question"} {
			if text, ok := row[key].(string); ok && text != "" {
				prompts = append(prompts, prompt{text, rowSize(row)})
				return nil
			}
		}
		return errors.New("no text: want one of prompt, text, content, question")
	})
	if err != nil {
		return nil, fmt.Errorf("prompt file: %w", err)
	}
	if len(prompts) == 0 {
		return nil, errors.New("prompt file: no prompts")
	}
	return prompts, nil
}
