// Package schema holds the database migrations (numbered, up only: roll forward)
// and the JSON Schemas of the files that people write.
package schema

import "embed"

// FS holds the migrations.
//
//go:embed *.sql
var FS embed.FS
