package loadgen

import (
	"context"
	"errors"
)

func probe(context.Context, Config) (Served, error) { return Served{}, errors.ErrUnsupported }

func run(context.Context, Config, Clock) (*Recording, error) { return nil, errors.ErrUnsupported }
