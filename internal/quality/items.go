package quality

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strings"

	"sbench/internal/canon"
)

// Bounds of a file of items.
const (
	MaxItems      = 100_000
	MaxItemsBytes = 256 << 20
	maxID         = 200 // bytes
)

// Item is one question.
type Item struct {
	Index      int    // from 0
	ID         string // "" where the file gives none
	Prompt     string
	References []string // at least one; nil for a command
	patterns   []*regexp.Regexp
}

// ErrItems is wrapped by every error about a file of items.
var ErrItems = errors.New("items")

// ParseItems reads a file of items: one JSON object a line, with the keys prompt,
// reference (a text, or a list of texts of which the best counts) and, where
// wanted, id. Empty lines are passed over. A command reads its items itself: of its
// file only the lines are counted, and each has to be JSON.
func ParseItems(data []byte, method Method) ([]Item, error) {
	if len(data) > MaxItemsBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrItems, MaxItemsBytes)
	}
	var items []Item
	seen := map[string]int{}
	for number, line := range numbered(data) {
		if len(items) == MaxItems {
			return nil, fmt.Errorf("%w: more than %d", ErrItems, MaxItems)
		}
		item, err := parseItem(line, method)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrItems, number, err)
		}
		if first, twice := seen[item.ID]; twice && item.ID != "" {
			return nil, fmt.Errorf("%w: line %d: id %q is that of line %d, too", ErrItems, number, item.ID, first)
		}
		seen[item.ID] = number
		item.Index = len(items)
		items = append(items, item)
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("%w: there are none", ErrItems)
	}
	return items, nil
}

// numbered are the lines of data that are not empty, with their numbers from 1 and
// without white space around them.
func numbered(data []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		number := 0
		for line := range bytes.Lines(data) {
			number++
			if line = bytes.TrimSpace(line); len(line) > 0 && !yield(number, line) {
				return
			}
		}
	}
}

func parseItem(line []byte, method Method) (Item, error) {
	// It refuses keys that are there twice and text that is no UTF-8.
	line, err := canon.Transform(line)
	if err != nil {
		return Item{}, err
	}
	if method == Command {
		return Item{}, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil || fields == nil {
		return Item{}, errors.New("is no object")
	}
	var item Item
	for key, value := range fields {
		var err error
		switch key {
		case "id":
			err = json.Unmarshal(value, &item.ID)
		case "prompt":
			err = json.Unmarshal(value, &item.Prompt)
		case "reference":
			item.References, err = references(value)
		default:
			return Item{}, fmt.Errorf("unknown key %.100q: there are id, prompt and reference", key)
		}
		if err != nil {
			return Item{}, fmt.Errorf("%s is no text", key)
		}
	}
	switch {
	case len(item.ID) > maxID || strings.ContainsAny(item.ID, "\x00\n\r"):
		return Item{}, fmt.Errorf("id %.100q has more than %d bytes, or line breaks", item.ID, maxID)
	case item.Prompt == "":
		return Item{}, errors.New("prompt is missing or empty")
	case len(item.References) == 0:
		return Item{}, errors.New("reference is missing or empty")
	}
	return item, item.compile(method)
}

// references reads a text or a list of texts.
func references(value json.RawMessage) ([]string, error) {
	if bytes.HasPrefix(value, []byte("[")) {
		var list []*string
		if err := json.Unmarshal(value, &list); err != nil {
			return nil, err
		}
		out := make([]string, len(list))
		for i, text := range list {
			if text == nil {
				return nil, errors.New("null")
			}
			out[i] = *text
		}
		return out, nil
	}
	var one *string
	if err := json.Unmarshal(value, &one); err != nil || one == nil {
		return nil, errors.Join(err, errors.New("no text"))
	}
	return []string{*one}, nil
}

// compile checks what a method needs of a reference. What every answer would meet
// is no reference.
func (i *Item) compile(method Method) error {
	for _, r := range i.References {
		switch {
		case method == Contains && r == "":
			return errors.New("an empty reference occurs in every answer")
		case method == Regex:
			p, err := regexp.Compile(r)
			if err != nil {
				return fmt.Errorf("reference: %w", err)
			}
			if p.MatchString("") {
				return fmt.Errorf("reference %.100q matches an empty answer", r)
			}
			i.patterns = append(i.patterns, p)
		}
	}
	return nil
}
