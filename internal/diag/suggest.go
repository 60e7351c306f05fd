package diag

import (
	"slices"
	"strconv"
	"strings"
)

// Suggest returns `did you mean "x"?` for the candidate nearest to word, or ""
// if none is near. Of equally near ones the one of the same length wins, then
// the first in alphabetical order.
func Suggest(word string, candidates []string) string {
	const longest = 64 // a hostile key must not cost anything
	if word == "" || len(word) > longest {
		return ""
	}
	sorted := slices.Sorted(slices.Values(candidates))
	best, bestDistance := "", max(1, len([]rune(word))/3)+1
	for _, c := range sorted {
		if len(c) > longest || c == word {
			continue
		}
		d := distance(strings.ToLower(word), strings.ToLower(c))
		if d < bestDistance || d == bestDistance && best != "" && len(c) == len(word) && len(best) != len(word) {
			best, bestDistance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + strconv.Quote(best) + "?"
}

// distance is the number of insertions, deletions, changes and swaps of
// neighbours between two words (optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(x)][len(y)]
}
