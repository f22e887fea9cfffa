// Before all modules, and not one itself: loads the page again where one of them did not come. Without one there is no page.
(() => {
  /** How often, so many seconds apart; then it says so and waits for somebody to ask. */
  const AFTER = [1, 2, 5, 10, 30];
  /** Modules that neither come nor fail for so long will not come, in seconds. */
  const PATIENCE = 30;
  const KEY = "ringtune.loaded-again";
  let ended = false;

  function say(text) {
    const bar = document.getElementById("lost");
    bar.textContent = text;
    bar.hidden = false;
  }

  function again() {
    if (ended) return;
    ended = true;
    const times = Number(sessionStorage.getItem(KEY) ?? 0);
    if (!(times < AFTER.length)) {
      sessionStorage.removeItem(KEY);
      say("The page did not come whole. Load it again, or ask whoever runs the coordinator.");
      return;
    }
    say("The page did not come whole, trying again …");
    sessionStorage.setItem(KEY, times + 1);
    setTimeout(() => location.reload(), AFTER[times] * 1000);
  }

  const patience = setTimeout(again, PATIENCE * 1000);
  // One that main.js imports fails there too. Errors of elements do not bubble, and are seen on their way down.
  addEventListener("error", (event) => event.target instanceof HTMLScriptElement && again(), true);
  addEventListener("begun", () => {
    ended = true;
    clearTimeout(patience);
    sessionStorage.removeItem(KEY);
  });
})();
