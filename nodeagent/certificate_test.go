package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/conf"
)

// TestAskEach: controllers that take connections and answer nothing keep no other from being asked.
func TestAskEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []conf.Controller
		for i := range 5 {
			all = append(all, conf.Controller{Name: fmt.Sprint("c", i+1)})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var asked []string
		got, err := askEach(ctx, all, func(ctx context.Context, k *conf.Controller) (string, error) {
			asked = append(asked, k.Name)
			switch k.Name {
			case "c5":
				return "signed", nil
			case "c2":
				return "", errors.New("no key here")
			}
			<-ctx.Done()
			return "", ctx.Err()
		})
		if err != nil || got != "signed" || len(asked) != 5 {
			t.Errorf("asked %v: %q, %v", asked, got, err)
		}
		_, err = askEach(t.Context(), all[:2], func(_ context.Context, k *conf.Controller) (string, error) { return "", errors.New("not " + k.Name) })
		if err == nil || !strings.Contains(err.Error(), "c1: not c1") || !strings.Contains(err.Error(), "c2: not c2") {
			t.Errorf("all refuse: %v", err)
		}
	})
}
