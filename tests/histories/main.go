// Judges histories of single values with Porcupine: is each key linearizable?
//
//	histories [-picture FILE.html] HISTORY.jsonl...
//
// A history has a transaction of crates/store-server/tests/store_server/histories/history.rs in each line. The exit status is 0 if all
// are linearizable, 1 if one is not, of which the picture then shows the key, and 2 if that could not be decided.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type act struct {
	Client  int    `json:"client"`
	BeginNs int64  `json:"begin_ns"`
	EndNs   *int64 `json:"end_ns"`
	Outcome string `json:"outcome"`
	Steps   []step `json:"steps"`
}

type step struct {
	Kind  string  `json:"kind"`
	Key   string  `json:"key"`
	Value *string `json:"value"`
	Reply *string `json:"reply"`
}

// What a transaction does to one key. Without a reply it may have happened, or happen later, or never.
type keyOperation struct {
	steps     []step
	isUnknown bool
}

// The value of a key, if it exists.
type register struct {
	exists bool
	value  string
}

// How long the search may take for one history.
const patience = 2 * time.Minute

// Applies one step, and tells whether its reply fits; an unknown reply fits if it is no condition of WATCH.
func (state register) apply(s step, isUnknown bool) (register, bool) {
	fits := func(want string) bool { return isUnknown || s.Reply != nil && *s.Reply == want }
	seen := func() bool {
		if s.Reply == nil {
			return isUnknown || !state.exists
		}
		return state.exists && *s.Reply == state.value
	}
	switch s.Kind {
	case "get":
		return state, seen()
	case "set":
		return register{true, *s.Value}, true
	case "get_set":
		return register{true, *s.Value}, seen()
	case "append":
		value := state.value + *s.Value
		return register{true, value}, fits(strconv.Itoa(len(value)))
	case "incr":
		number := int64(0)
		if state.exists {
			var err error
			if number, err = strconv.ParseInt(state.value, 10, 64); err != nil {
				return state, false
			}
		}
		value := strconv.FormatInt(number+1, 10)
		return register{true, value}, fits(value)
	case "del":
		if state.exists {
			return register{}, fits("1")
		}
		return register{}, fits("0")
	case "flush":
		return register{}, true
	}
	panic("unknown kind of step: " + s.Kind)
}

var model = porcupine.Model{
	Init: func() interface{} { return register{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		operation, now := input.(keyOperation), state.(register)
		for _, s := range operation.steps {
			next, fits := now.apply(s, operation.isUnknown)
			if !fits {
				// A transaction without a reply whose condition does not hold does not happen.
				return operation.isUnknown, state
			}
			now = next
		}
		return true, now
	},
	DescribeOperation: func(input, output interface{}) string {
		operation := input.(keyOperation)
		var words []string
		for _, s := range operation.steps {
			words = append(words, s.describe(operation.isUnknown))
		}
		return strings.Join(words, ", ")
	},
	DescribeState: func(state interface{}) string {
		if now := state.(register); now.exists {
			return short(now.value)
		}
		return "absent"
	},
}

func short(value string) string {
	if len(value) > 40 {
		return value[:40] + "..."
	}
	return value
}

func (s step) describe(isUnknown bool) string {
	text := s.Kind
	if s.Value != nil {
		text += " " + short(*s.Value)
	}
	switch {
	case s.Reply != nil:
		text += " -> " + short(*s.Reply)
	case isUnknown:
		text += " -> ?"
	case s.Kind == "get" || s.Kind == "get_set":
		text += " -> absent"
	}
	return text
}

func read(path string) ([]act, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var acts []act
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r act
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, len(acts)+1, err)
		}
		acts = append(acts, r)
	}
	return acts, lines.Err()
}

// Splits a history by keys. Linearizability is local: all of it is linearizable if each key is.
func split(acts []act) map[string][]porcupine.Operation {
	keys := map[string][]porcupine.Operation{}
	var flushes []porcupine.Operation
	for _, r := range acts {
		if r.Outcome == "refused" {
			continue
		}
		isUnknown := r.Outcome == "unknown"
		// It can take place until the end of the history, and then nobody sees it.
		end := int64(math.MaxInt64)
		if r.EndNs != nil {
			end = *r.EndNs
		}
		of := map[string][]step{}
		writes := false
		for _, s := range r.Steps {
			of[s.Key] = append(of[s.Key], s)
			writes = writes || s.Kind != "get"
		}
		if isUnknown && !writes {
			continue
		}
		for key, steps := range of {
			operation := porcupine.Operation{
				ClientId: r.Client, Call: r.BeginNs, Return: end, Input: keyOperation{steps, isUnknown},
			}
			if steps[0].Kind == "flush" {
				flushes = append(flushes, operation)
			} else {
				keys[key] = append(keys[key], operation)
			}
		}
	}
	for key, operations := range keys {
		first, last := operations[0].Call, operations[0].Call
		for _, operation := range operations {
			first, last = min(first, operation.Call), max(last, operation.Call)
			if operation.Return != math.MaxInt64 {
				last = max(last, operation.Return)
			}
		}
		for _, flush := range flushes {
			if flush.Return >= first && flush.Call <= last {
				keys[key] = append(keys[key], flush)
			}
		}
	}
	return keys
}

func min(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

func max(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

func main() {
	picture := flag.String("picture", "not-linearizable.html", "where to draw the key that is not linearizable")
	flag.Parse()
	status := 0
	for _, path := range flag.Args() {
		acts, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		keys, operations := split(acts), 0
		deadline := time.Now().Add(patience)
		for key, history := range keys {
			operations += len(history)
			result, info := porcupine.CheckOperationsVerbose(model, history, time.Until(deadline))
			switch result {
			case porcupine.Illegal:
				fmt.Printf("%s: key %s is not linearizable: %s\n", path, key, *picture)
				if err := porcupine.VisualizePath(model, info, *picture); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
				os.Exit(1)
			case porcupine.Unknown:
				fmt.Printf("%s: key %s: not decided within %v\n", path, key, patience)
				status = 2
			}
		}
		fmt.Printf("%s: %d operations on %d keys\n", path, operations, len(keys))
	}
	os.Exit(status)
}
