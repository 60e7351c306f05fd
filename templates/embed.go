// Package templates holds the batch scripts that a site may override.
package templates

import "embed"

// FS has the templates at its root.
//
//go:embed *.sbatch.tmpl
var FS embed.FS
