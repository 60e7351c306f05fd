package metrics

import (
	"fmt"
	"math"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The range of the stored histograms: 1 µs to 1 h in ns, 3 significant digits.
const (
	histogramLow    = 1_000
	histogramHigh   = 3_600_000_000_000
	histogramDigits = 3
)

// histogram encodes the finite samples of a column of seconds, in nanoseconds,
// in the V2 compressed encoding (base64 text, as in HdrHistogram logs). It is for
// merging and drawing; what failed is not in it.
func histogram(col column) []byte {
	h := hdrhistogram.New(histogramLow, histogramHigh, histogramDigits)
	for _, v := range col.values {
		ns := int64(math.Round(v.value * 1e9))
		ns = min(max(ns, 0), histogramHigh)
		// The value is within the histogram's range, so it cannot be refused.
		_ = h.RecordValues(ns, int64(v.weight))
	}
	encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil
	}
	return encoded
}

// DecodeHistogram reads a histogram that Compute encoded. Its values are in
// nanoseconds.
func DecodeHistogram(encoded []byte) (*hdrhistogram.Histogram, error) {
	h, err := hdrhistogram.Decode(encoded)
	if err != nil {
		return nil, fmt.Errorf("decode histogram: %w", err)
	}
	return h, nil
}
