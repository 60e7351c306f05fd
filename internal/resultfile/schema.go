package resultfile

import (
	"fmt"

	"github.com/parquet-go/parquet-go"
)

// Kinds lists the kinds of row, which are the names of the files in schema/.
func Kinds() []string { return []string{"result", "window", "requests", "telemetry", "quality"} }

// Schema is the schema of a kind as text, in the notation of the Parquet format.
func Schema(kind string) (string, error) {
	var s *parquet.Schema
	switch kind {
	case "result":
		s = schemaOf(kind, resultColumns())
	case "window":
		s = schemaOf(kind, windowColumns())
	case "quality":
		s = schemaOf(kind, qualityColumns())
	case "requests":
		s = parquet.NewSchema(kind, parquet.SchemaOf(requestRow{}))
	case "telemetry":
		s = parquet.NewSchema(kind, parquet.SchemaOf(telemetryRow{}))
	default:
		return "", fmt.Errorf("no kind of row %q", kind)
	}
	return s.String() + "\n", nil
}
