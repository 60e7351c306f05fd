package quality

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"sbench/internal/canon"
	"sbench/internal/result"
)

// MaxOutput is how many bytes of a command's output are read.
const MaxOutput = 64 << 20

// maxReason is how many bytes of a reason or an answer are kept.
const (
	maxReason = 1 << 10
	maxAnswer = 64 << 10
)

// Unscored is an item without a score.
func Unscored(item Item, reason string) result.QualityItem {
	return result.QualityItem{Index: item.Index, ID: item.ID, Reason: clip(reason, maxReason)}
}

// Answered scores an answer.
func Answered(method Method, item Item, answer, finish string, tokens *int64) result.QualityItem {
	s := Score(method, item, answer)
	return result.QualityItem{
		Index: item.Index, ID: item.ID, Score: &s, Answer: clip(answer, maxAnswer), FinishReason: clip(finish, maxReason), OutputTokens: tokens,
	}
}

func clip(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// ErrOutput is wrapped by every error about what a command printed.
var ErrOutput = errors.New("output of the command")

// ParseScores reads what a command printed on stdout: a line of JSON per item, in
// the items' order, that is a number between 0 and 1 or an object with the key
// score and, where wanted, id and reason; a score of null is an item that failed.
// Other keys of an object are passed over, and so are empty lines. There have to be
// count lines: output that ended early is no result.
func ParseScores(data []byte, count int) ([]result.QualityItem, error) {
	list := make([]result.QualityItem, 0, max(0, min(count, len(data)/2+1)))
	seen := map[string]int{}
	for number, line := range numbered(data) {
		if len(list) == count {
			return nil, fmt.Errorf("%w: line %d: more scores than the %d items", ErrOutput, number, count)
		}
		s, err := parseScore(line)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrOutput, number, err)
		}
		if first, twice := seen[s.ID]; twice && s.ID != "" {
			return nil, fmt.Errorf("%w: line %d: id %q is that of line %d, too", ErrOutput, number, s.ID, first)
		}
		seen[s.ID] = number
		s.Index = len(list)
		list = append(list, s)
	}
	if len(list) != count {
		return nil, fmt.Errorf("%w: %d scores for %d items", ErrOutput, len(list), count)
	}
	return list, nil
}

func parseScore(line []byte) (result.QualityItem, error) {
	line, err := canon.Transform(line)
	if err != nil {
		return result.QualityItem{}, fmt.Errorf("%w; only scores belong on stdout", err)
	}
	value, s := json.RawMessage(line), result.QualityItem{}
	if line[0] == '{' {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(line, &fields); err != nil {
			return result.QualityItem{}, err
		}
		for key, into := range map[string]*string{"id": &s.ID, "reason": &s.Reason} {
			if text, ok := fields[key]; ok && json.Unmarshal(text, into) != nil {
				return result.QualityItem{}, fmt.Errorf("%s is no text", key)
			}
		}
		var ok bool
		if value, ok = fields["score"]; !ok {
			return result.QualityItem{}, errors.New("the key score is missing")
		}
	}
	if len(s.ID) > maxID || strings.ContainsAny(s.ID, "\x00\n\r") {
		return result.QualityItem{}, fmt.Errorf("id %.100q has more than %d bytes, or line breaks", s.ID, maxID)
	}
	s.Reason = clip(s.Reason, maxReason)
	if string(value) == "null" {
		if s.Reason == "" {
			s.Reason = "the command gave no score"
		}
		return s, nil
	}
	var v float64
	if err := json.Unmarshal(value, &v); err != nil {
		return result.QualityItem{}, fmt.Errorf("%.100q is no score", value)
	}
	if !(v >= 0 && v <= 1) {
		return result.QualityItem{}, fmt.Errorf("a score of %g is not between 0 and 1", v)
	}
	s.Score, s.Reason = &v, ""
	return s, nil
}

// Summary is what the scores of an evaluation come to.
type Summary struct {
	Items, Scored int
	Truncated     int // answers that the limit on output tokens cut off
	// Score is the mean over the items and StdDev their sample standard deviation,
	// nil for one item. Both are nil where an item has no score: the mean of the
	// others would be that of the easy ones. Reason says so.
	Score, StdDev *float64
	Reason        string
}

// Summarize sums up the scores of all items.
func Summarize(list []result.QualityItem) Summary {
	s := Summary{Items: len(list)}
	sum, why := 0.0, ""
	for _, x := range list {
		if x.FinishReason == "length" {
			s.Truncated++
		}
		if x.Score == nil {
			if why == "" {
				why = fmt.Sprintf("item %d: %s", x.Index, x.Reason)
			}
			continue
		}
		s.Scored++
		sum += *x.Score
	}
	switch {
	case s.Items == 0:
		s.Reason = "no item"
		return s
	case s.Scored < s.Items:
		s.Reason = fmt.Sprintf("%d of %d items have no score: %s", s.Items-s.Scored, s.Items, why)
		return s
	}
	mean := sum / float64(s.Items)
	s.Score = &mean
	if s.Items > 1 {
		squares := 0.0
		for _, x := range list {
			squares += (*x.Score - mean) * (*x.Score - mean)
		}
		sd := math.Sqrt(squares / float64(s.Items-1))
		s.StdDev = &sd
	}
	return s
}
