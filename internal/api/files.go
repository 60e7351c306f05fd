package api

// RemoveFilesRequest asks to remove the files of attempts that count for nothing.
type RemoveFilesRequest struct {
	DryRun bool `json:"dry_run"` // say what would go, and remove nothing
}

// RemovedFiles is what was removed, or would be.
type RemovedFiles struct {
	DryRun   bool             `json:"dry_run"`
	Attempts []RemovedAttempt `json:"attempts"`
	Files    int64            `json:"files"`
	Bytes    int64            `json:"bytes"`
}

// RemovedAttempt is an attempt whose files are gone, or would be.
type RemovedAttempt struct {
	RunID     int64  `json:"run_id"`
	Folder    string `json:"folder"` // below the attempts folder
	ExitClass string `json:"exit_class"`
	Reason    string `json:"reason"` // failed, unsealed
	Files     int64  `json:"files"`
	Bytes     int64  `json:"bytes"`
}
