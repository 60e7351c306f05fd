package result

// QualityFile has a row per item of the evaluation after the measurement; it is
// there where an item was asked.
const QualityFile = "quality.parquet"

// Quality is what became of the evaluation after a measurement, which it does not
// touch: whatever failed here, the measurement stands.
type Quality struct {
	Definition string `json:"definition"` // quality.Definition.Hash: what the score is a score of
	Method     string `json:"method"`
	// Items is nil where it is not known how many there are.
	Items     *int `json:"items"`
	Scored    *int `json:"scored"`
	Failed    *int `json:"failed"`
	Truncated *int `json:"truncated"` // nil with a command
	// Score is between 0 and 1; nil where an item has no score, and Reason says why.
	Score   *float64 `json:"score"`
	StdDev  *float64 `json:"stddev"` // over the items; nil for one
	Seconds float64  `json:"seconds"`
	Reason  string   `json:"reason,omitempty"`
}

// QualityItem is what became of one item.
type QualityItem struct {
	Index        int
	ID           string // "" where the file gives none
	Score        *float64
	Reason       string // why there is no score
	Answer       string // the engine's; "" with a command
	FinishReason string
	OutputTokens *int64 // by the engine's count; nil where it does not say
}
