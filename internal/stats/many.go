package stats

import (
	"cmp"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

func normalQuantile(p float64) float64 { return distuv.UnitNormal.Quantile(p) }

// BenjaminiHochberg controls the share of false discoveries among the rejected at
// q. It returns which are rejected and the adjusted p values, both in the order
// of p.
func BenjaminiHochberg(p []float64, q float64) (reject []bool, adjusted []float64) {
	order := byValue(p)
	m := float64(len(p))
	reject, adjusted = make([]bool, len(p)), make([]float64, len(p))
	last, least := -1, 1.0
	for k := len(order) - 1; k >= 0; k-- {
		i := order[k]
		least = min(least, max(p[i], p[i]*m/float64(k+1))) // rounding makes no p value smaller
		adjusted[i] = least
		if last < 0 && p[i] <= q*float64(k+1)/m {
			last = k
		}
	}
	for k := 0; k <= last; k++ {
		reject[order[k]] = true
	}
	return reject, adjusted
}

// Holm adjusts p values so that the chance of any false rejection is bounded.
func Holm(p []float64) []float64 {
	adjusted := make([]float64, len(p))
	var largest float64
	for k, i := range byValue(p) {
		largest = max(largest, min(1, p[i]*float64(len(p)-k)))
		adjusted[i] = largest
	}
	return adjusted
}

// Simes is one p value for "at least one of these is not null".
func Simes(p []float64) float64 {
	least := 1.0
	for k, i := range byValue(p) {
		least = min(least, p[i]*float64(len(p))/float64(k+1))
	}
	return least
}

// byValue are the indexes of p, its smallest value first.
func byValue(p []float64) []int {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p[a], p[b]) })
	return order
}
