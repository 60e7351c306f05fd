// Command score is an evaluation program in the image of the tests' engine: it asks
// a server to continue each item's prompt, and prints 1 for an item with an answer
// and 0 for one without.
//
//	score ITEMS URL MODEL
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "score:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 4 {
		return fmt.Errorf("%d arguments: want ITEMS URL MODEL", len(os.Args)-1)
	}
	items, err := os.Open(os.Args[1])
	if err != nil {
		return err
	}
	defer items.Close()
	lines := bufio.NewScanner(items)
	for lines.Scan() {
		var item struct {
			Prompt string `json:"prompt"`
		}
		if err := json.Unmarshal(lines.Bytes(), &item); err != nil {
			return err
		}
		text, err := complete(os.Args[2], os.Args[3], item.Prompt)
		if err != nil {
			return err
		}
		if text == "" {
			fmt.Println(0)
		} else {
			fmt.Println(1)
		}
	}
	return lines.Err()
}

// complete returns the server's continuation of a prompt.
func complete(url, model, prompt string) (string, error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0})
	if err != nil {
		return "", err
	}
	response, err := http.Post(url+"/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, response.Status)
	}
	var answer struct {
		Choices []struct {
			Text string `json:"text"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return "", err
	}
	if len(answer.Choices) == 0 {
		return "", fmt.Errorf("%s: no choices", url)
	}
	return answer.Choices[0].Text, nil
}
